"""Arrays: buffers of our own, and the memory of other libraries through DLPack, the CUDA array interface and Arrow."""
