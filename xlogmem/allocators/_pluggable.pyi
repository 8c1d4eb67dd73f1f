__all__ = ["RECORD_STREAM", "has_out_of_memory"]

RECORD_STREAM: int
has_out_of_memory: bool
