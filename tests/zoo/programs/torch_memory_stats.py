"""What training scripts print of memory: memory_stats, memory_summary, peaks, and a recorded history.

Right: one stream.  Figures depend on the allocator; that the calls answer does not.
"""
import torch

torch.cuda.memory._record_memory_history(max_entries=1000)
for size in (10, 1000, 1_000_000):
    torch.rand(size, device="cuda").sort()
stats, snapshot = torch.cuda.memory_stats(), torch.cuda.memory._snapshot()
torch.cuda.memory._record_memory_history(enabled=None)
torch.cuda.reset_peak_memory_stats()
torch.cuda.empty_cache()
torch.cuda.set_per_process_memory_fraction(0.9)
kept = torch.ones(1 << 22, device="cuda")
free, whole = torch.cuda.mem_get_info()
print("answers:", "segments" in snapshot, stats["num_ooms"] == 0, torch.cuda.max_memory_allocated() >= 1 << 24,
      "allocated" in torch.cuda.memory_summary().lower(), 0 < free < whole, kept.sum().item())
