// Functions that are not simulated: each logs its name once, and returns that it is not supported.
#include "not_simulated.hpp"
#include "solver.hpp"

#define STUB(name) NOT_SIMULATED(name, cusolver::kNotSupported)
#include "names.hpp"
