# find_package(xlogmem): the target xlogmem::headers, which has the folder of xlogmem.h and xlogmem.hpp.  There is nothing
# to link to.  `python -c "import xlogmem; print(xlogmem.get_cmake_dir())"` prints this folder, for -Dxlogmem_DIR.
# xlogmem_mr.hpp needs CCCL's headers too, for instance of find_package(rmm).
include_guard()

get_filename_component(xlogmem_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
if(NOT EXISTS "${xlogmem_INCLUDE_DIR}/xlogmem.h")
  set(xlogmem_FOUND FALSE)
  set(xlogmem_NOT_FOUND_MESSAGE "${xlogmem_INCLUDE_DIR} has no xlogmem.h: install xlogmem again")
  return()
endif()

add_library(xlogmem::headers INTERFACE IMPORTED)
set_target_properties(xlogmem::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${xlogmem_INCLUDE_DIR}")
get_property(_xlogmem_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if("CXX" IN_LIST _xlogmem_languages)
  set_target_properties(xlogmem::headers PROPERTIES INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
unset(_xlogmem_languages)
