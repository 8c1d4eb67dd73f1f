# The version is that of the package.  One with the same first number, and from 0.x with the same two, will do: see
# CHANGELOG.md.  What an extension needs of the C table it finds out itself, when it is imported.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../../__init__.py" _xlogmem_line REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = \"([0-9.]+).*" "\\1" PACKAGE_VERSION "${_xlogmem_line}")
unset(_xlogmem_line)

string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" _xlogmem_series "${PACKAGE_VERSION}")
string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" _xlogmem_wanted "${PACKAGE_FIND_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION OR NOT _xlogmem_series STREQUAL _xlogmem_wanted)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
unset(_xlogmem_series)
unset(_xlogmem_wanted)
