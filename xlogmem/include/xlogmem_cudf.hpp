//! Columns and tables of libcudf in `reads`, `writes` and `reads_writes`: data, null masks and children.
//!
//!     xlogmem::launch use{runtime, stream, xlogmem::reads(table), xlogmem::writes(result->view())};
//!
//! Any type with the functions of cudf::column_view or cudf::table_view will do, and so nothing of libcudf is included.  A
//! cudf::column and a cudf::table are given as their view().
#pragma once

#include "xlogmem.hpp"

namespace xlogmem {

//! A column: `head()` is where its memory begins, of which a slice names a part.
template <class Column>
auto xlogmem_memory(Column const& column, accesses& add)
    -> decltype(column.head(), column.null_mask(), column.num_children(), void()) {
    add(column.head(), column.null_mask());
    for (auto child = decltype(column.num_children()){0}; child < column.num_children(); ++child)
        add(column.child(child));
}

//! A table: a range of columns.
template <class Table>
auto xlogmem_memory(Table const& table, accesses& add) -> decltype(table.num_columns(), table.begin()->head(), void()) {
    for (auto const& column : table) add(column);
}

}  // namespace xlogmem
