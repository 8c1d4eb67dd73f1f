// Functions that are not simulated: each logs its name once, and returns that it is not supported.
#include "sparse.hpp"

#define STUB(name) NOT_SIMULATED(name, cusparse::kNotSupported)
#include "names.hpp"
