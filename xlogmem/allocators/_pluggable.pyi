__all__ = ["RECORD_STREAM", "begin_counting", "end_counting", "has_out_of_memory"]

RECORD_STREAM: int
has_out_of_memory: bool

def begin_counting() -> None: ...
def end_counting() -> tuple[int, int]: ...
