// What happens below a level whose batch is spread over processes. A value there is either the same for all processes
// (shared) or this process's part of something, and these operators are the ways between the two:
//
//   sum         parts  → shared   adds them
//   vary        shared → parts    nothing happens: each process goes on by itself with what all have
//   gather      parts  → shared   one behind the other, along the first dimension
//   part        shared → parts    this process's slice of the first dimension
//   permute     parts  → parts    rows go to other places, of other processes
//   regroup     parts  → parts    element i of all rows goes to row i
//   extremum    parts  → shared   the largest or smallest along the first dimension of all parts
//
// All but the last are linear; sum and vary are each other's transpose, gather and part are, permute has another
// permute, and regroup itself. So a cotangent of what is shared is shared and one of a part is that part's, in every
// order of derivative, and processes talk where sharing begins and where rows move, and nowhere else. Under other
// levels' vmap the operators are elementwise in the batch.
#pragma once

#include <memory>

#include "mesh/group.h"
#include "mesh/list_operator.h"

namespace tower::mesh {

using GroupPointer = std::shared_ptr<Group>;
using Counts = std::shared_ptr<const std::vector<int64_t>>;  // the size of each process's part

/// `name`: the collective that a user called, for messages; a literal.
Tensors sum(const GroupPointer& group, const char* name, const Tensors& parts);
Tensors vary(const GroupPointer& group, const Tensors& shared);
Tensors gather(const GroupPointer& group, const char* name, const Counts& counts, const Tensors& parts);
Tensors part(const GroupPointer& group, const Counts& counts, const Tensors& shared);
/// Pairs of rows of all processes, from and to; a row that is no `to` becomes zeros.
Tensors permute(const GroupPointer& group, const char* name, const Counts& counts,
                const std::vector<std::pair<int64_t, int64_t>>& pairs, const Tensors& parts);
/// Each row has one element, along dimension 1, for each row of all processes.
Tensors regroup(const GroupPointer& group, const char* name, const Counts& counts, const Tensors& parts);
Tensors extremum(const GroupPointer& group, const char* name, Extremum which, const Tensors& parts);

/// 1 where elements of `x` are the extremum `of` their dimension 0, and 0 elsewhere, in the type of `x`.
Tensor holders(const Tensor& x, const Tensor& of);

}  // namespace tower::mesh
