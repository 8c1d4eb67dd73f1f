// Prints the common names of kernels, a line for each argument.
#include "kernels/names.hpp"

#include <cstdio>

int main(int count, char** names) {
    for (int i = 1; i < count; i++) puts(check::readable(names[i]).c_str());
}
