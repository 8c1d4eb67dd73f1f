# Sections: what the GIL guards, where there is no GIL.
#
# Some lists and attributes of objects that threads share have no lock: the GIL guards them, and every change is one
# step, because other threads run wherever the GIL is released.  A free-threaded Python has no GIL.  There a section is
# CPython's critical section of an object: one thread at a time is in it, and wherever a thread would release the GIL,
# it leaves the section until it goes on.  So what is right with the GIL is right in sections, and no two wait for each
# other.  With the GIL a section is nothing, and costs nothing.
#
# A section ends with its function.  So a function that is declared `with gil` begins none: it calls one that does.

cdef extern from *:
    """
    #ifndef XLOGMEM_SECTION
    #define XLOGMEM_SECTION
    struct xlogmem_section {
    #if defined(Py_GIL_DISABLED) && !defined(XLOGMEM_NO_SECTIONS)   // see tests/core/test_free_threading.py
        PyCriticalSection section;
        bool begun = false;
        void begin(void* object) {
            PyCriticalSection_Begin(&section, static_cast<PyObject*>(object));
            begun = true;
        }
        ~xlogmem_section() {
            if (begun) PyCriticalSection_End(&section);
        }
    #else
        void begin(void*) {}
    #endif
    };
    #endif
    """
    cdef cppclass Section "xlogmem_section":
        # Once, of an object that the caller refers to until the function returns.
        void begin(object of) noexcept
        void begin_of "begin"(void* of) noexcept
