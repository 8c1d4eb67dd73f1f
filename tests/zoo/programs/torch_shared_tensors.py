"""A tensor on the device goes to another process by torch.multiprocessing, which writes into it.

Right: both ends synchronize before the other one looks.
"""
import torch
import torch.multiprocessing


def triple(inbox, outbox):
    values = inbox.get()
    values.mul_(3)
    torch.cuda.synchronize()
    outbox.put(values.sum().item())
    del values


if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=triple, args=(inbox, outbox))
    child.start()
    values = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    inbox.put(values)
    seen = outbox.get(timeout=60)
    child.join()
    print("sums:", seen, values.sum().item(), "status:", child.exitcode)
