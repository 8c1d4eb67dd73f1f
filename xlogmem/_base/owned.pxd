# A C structure that ends with the Python object which owns it.
#
# Cython sets the exception that is under way aside for each `__dealloc__`, and calls each `__del__` through Python.
# For objects that come and go with every launch that is more work than their end itself, which is a store.  The
# destructor of a member costs nothing; if the function that it calls does more than a store, the function has to keep
# an exception that is under way.

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #include <cstdint>
    #ifndef XLOGMEM_OWNED
    #define XLOGMEM_OWNED
    template <typename Item>
    struct xlogmem_owned {
        Item* item = nullptr;
        void* object = nullptr;
        std::uint64_t number = 0;
        void (*end)(Item*, void*, std::uint64_t) = nullptr;
        ~xlogmem_owned() { if (item) end(item, object, number); }
    };
    #endif
    """
    cdef cppclass Owned "xlogmem_owned" [Item]:
        Owned()
        Item* item              # NULL: nothing has to be done
        void* object            # for `end`: a Python object that lives until then, by the owner's own reference
        uint64_t number         # for `end`: which of those that the item was, one after the other
        void (*end)(Item* item, void* object, uint64_t number) noexcept
