# The description of a buffer.  `ArrayView` is a part of a block with a dtype and a shape: it describes itself, makes
# views of its parts, and checks that its memory may still be accessed.  It does not access the memory; `Buffer` does.

cimport cython

from xlogmem._base.texts import as_html, shown
from xlogmem._base.units import format_bytes
from xlogmem.errors import StaleBufferError
from xlogmem.interop._dtypes import DTYPES
from xlogmem._base.sections cimport Section
from xlogmem._core cimport ByteRange
from xlogmem.blocks cimport BlockView, Core, DeviceBlock, refuse_freed
from xlogmem.interop._layout cimport ArrayLayout, new_layout


cdef ArrayLayout NOTHING = new_layout(DTYPES["uint8"], 0, (0,), None, False)


@cython.auto_pickle(False)
cdef class ArrayView(BlockView):
    """A typed part of a block; users hold a `Buffer`."""

    def __cinit__(self):
        self.layout = NOTHING

    # ------------------------------------------------------------------------------------------ status
    cdef const char* stale(self) noexcept:
        """The reason why the memory must not be accessed; NULL if it may be accessed."""
        cdef const char* reason
        if self.device is None:
            return "device state dropped"
        reason = self.device.stale()
        if reason == NULL and self.consumed:
            return "consumed"
        return reason

    cdef int refuse_stale(self) except -1:
        cdef const char* reason = self.stale()
        if reason != NULL:
            raise StaleBufferError((<bytes>reason).decode())
        return 0

    cdef bint find_range(self, DeviceBlock block, ByteRange* found) noexcept:
        found.first = self.layout.start
        found.end = self.layout.start + self.layout.extent
        return 0 < self.layout.extent < block.nbytes

    cdef object owner_now(self):
        """Return the owner, which another thread may drop by a release."""
        cdef Section section
        section.begin(self)
        return self.owner

    cdef int refuse_consumed(self) except -1:
        """Raise if the buffer has no memory: parts of other stale buffers may be made."""
        return self.refuse_stale() if self.device is None or self.consumed else 0

    cdef int refuse_writing(self, str what) except -1:
        if self.layout.readonly:
            raise ValueError(f"{what}: the buffer is read-only")
        return 0

    @property
    def is_stale(self):
        """True if the memory must not be accessed any more; `access` raises the reason."""
        return self.stale() != NULL

    @property
    def epoch(self):
        """The epoch of the device's state when the buffer was made; it never changes."""
        return self.device.epoch if self.device is not None else 0

    def access(self):
        """The block, if it may be used.

        Returns
        -------
        DeviceBlock or None
            None for zero bytes.

        Raises
        ------
        StaleBufferError
            ``device state dropped``, ``device shutting down``, ``context lost`` or ``context rebuilt``, in this order,
            or ``consumed``.
        """
        self.refuse_stale()
        return self.held()

    # ------------------------------------------------------------------------------------------ description
    @property
    def shape(self):
        """Elements in each dimension, a tuple of int."""
        return self.layout.shape

    @property
    def strides(self):
        """Bytes from one element to the next in each dimension, a tuple of int."""
        return self.layout.strides

    @property
    def readonly(self):
        """True if the memory must not be written through this buffer."""
        return self.layout.readonly

    @property
    def itemsize(self):
        """Bytes of one element."""
        return self.layout.itemsize

    @property
    def size(self):
        """The number of elements."""
        return self.layout.size

    @property
    def dtype(self):
        """The kind of the elements, by NumPy's name."""
        return self.layout.dtype.name

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.layout.shape)

    @property
    def nbytes(self):
        """Bytes of all elements together."""
        return self.layout.nbytes()

    @property
    def is_empty(self):
        """True if there are no elements."""
        return self.layout.size == 0

    @property
    def device_id(self):
        """The number of the device, None once the device's state was dropped."""
        return self.device.status.device_id if self.device is not None and not self.device.status.dropped else None

    @property
    def ptr(self):
        """The device address of the first element, as an int; 0 if there are no elements.

        Name the buffer in `use` around all work with it, as in ``with use(stream, write=buffer): launch(buffer.ptr)``:
        the address alone orders nothing, and keeps neither the memory nor the device's context.  `Buffer.pointer` gives
        the address for as long as it may be used.

        Raises
        ------
        StaleBufferError
            See `access`.
        UseAfterFreeError
            The buffer's block was freed.
        """
        self.refuse_stale()
        block = self.held()
        if block is not None:
            refuse_freed(block)
        return self.layout.ptr

    @property
    def data(self):
        """The buffer itself, for programs that write ``array.data.ptr``, as for CuPy's arrays; see `ptr`."""
        return self

    # ------------------------------------------------------------------------------------------ views
    def __copy__(self):
        cdef Section section
        section.begin(self)
        self.refuse_consumed()
        return new_buffer(self.device, self.held(), self.layout, self.owner_now())

    def __getitem__(self, key):
        """A part, which shares the memory: integers, slices and an ellipsis."""
        cdef Section section
        section.begin(self)
        self.refuse_consumed()
        return new_buffer(self.device, self.held(), self.layout.item(key), self.owner_now())

    def __setitem__(self, key, value):
        raise TypeError("elements of a buffer cannot be assigned: use buffer[...].fill(value) or "
                        "buffer[...].copy_from(array). Memory that the host reaches is written with map(write=True)")

    def view(self, dtype=None, shape=None):
        """The same bytes as another dtype or shape; the buffer has to be contiguous.

        Parameters
        ----------
        dtype : dtype, optional
            The default is the buffer's own.
        shape : int or tuple of int, optional
            The default is one dimension if the dtype is another, else the buffer's own.

        Raises
        ------
        ValueError
            The sizes do not fit, or the buffer is not contiguous.
        """
        cdef Section section
        section.begin(self)
        self.refuse_consumed()
        return new_buffer(self.device, self.held(), self.layout.seen_as(dtype, shape), self.owner_now())

    def reshape(self, *shape):
        """The same elements, in the same order (C's), in another shape; the memory is shared.

        Parameters
        ----------
        *shape : int, or one tuple of int
            One extent may be -1: it is computed from the number of elements.

        Raises
        ------
        ValueError
            The shape has another number of elements, or only a copy could have this shape: nothing is copied.
        """
        cdef Section section
        section.begin(self)
        self.refuse_consumed()
        wanted = shape[0] if len(shape) == 1 else shape
        return new_buffer(self.device, self.held(), self.layout.reshaped(wanted), self.owner_now())

    @property
    def T(self):
        """The same elements with the dimensions in the reverse order; the memory is shared."""
        cdef Section section
        section.begin(self)
        self.refuse_consumed()
        return new_buffer(self.device, self.held(), self.layout.transposed(), self.owner_now())

    def __len__(self):
        if not self.layout.shape:
            raise TypeError("a buffer without dimensions has no length")
        return self.layout.shape[0]

    def __bool__(self):
        raise TypeError("the truth value of a buffer is on the device; use its size")

    def _repr_html_(self):
        """What it is and where, for notebooks; the memory itself is not looked at."""
        rows = [("dtype", self.dtype), ("shape", self.shape), ("bytes", format_bytes(self.nbytes))]
        block = self.held()
        if self.stale() == NULL and block is not None:
            rows += [("block", block.generation), ("tag", shown(block.tag))]
        return as_html(repr(self), (("", ""), rows))

    def __repr__(self):
        if self.device is None:
            return "<Buffer that was never made>"
        extra = ", consumed" if self.consumed else f", {(<bytes>self.stale()).decode()}" if self.stale() != NULL else ""
        return (f"<Buffer {self.dtype} shape={self.shape} len={self.size} device={self.device_id} "
                f"epoch={self.epoch}{extra}>")


# ---------------------------------------------------------------------------------------------- how buffers are made
cdef Buffer new_buffer(DeviceSnapshot device, DeviceBlock block, ArrayLayout layout, object owner):
    """Make a buffer over part of a block (None: there are no elements)."""
    cdef Buffer buffer = Buffer.__new__(Buffer)
    buffer.device = device
    buffer.core = device.core
    buffer.block = block
    buffer.layout = layout
    buffer.owner = owner
    return buffer


cdef Buffer buffer_of_block(DeviceBlock block, Core core):
    """Make a buffer of the bytes of a block that no device state has."""
    cdef DeviceSnapshot device = DeviceSnapshot(DeviceStatus(core.ordering.context.device_id), core, 0)
    cdef ArrayLayout layout = new_layout(DTYPES["uint8"], block.address, (block.nbytes,), None, False)
    return new_buffer(device, block if block.core is not None else None, layout, None)


def set_token_maker(maker):
    """Let `Buffer.token` call ``maker(buffer)``."""
    global token_maker
    token_maker = maker


def make_buffer(DeviceSnapshot device not None, DeviceBlock block, shape, dtype):
    """Make a contiguous buffer from the start of a block (None: there are no elements)."""
    start = block.address if block is not None else 0
    return new_buffer(device, block, new_layout(dtype, start, shape, None, False), None)
