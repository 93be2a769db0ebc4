// What many operators' rules have in common, written once: plain functions on frames, so that a record is only data.
#pragma once

#include <string_view>
#include <vector>

#include "core/operator.h"

namespace tower::rules {

Operator& record_of(const char* name, const char* overload);
/// "mk,kn->mn", read.
Contraction contraction_of(std::string_view letters, bool adds);

/// What an empty list of dimensions means to an operator.
enum class EmptyDims : uint8_t { none, all };

// ---- batching ----

/// Aligns the logical dimensions of all tensors and calls the operator. Type promotion follows the logical ranks.
void vmap_pointwise(VmapFrame& frame);
/// Puts the batch first in every tensor, shifts the dimensions in the arguments `dims` (ints or int lists) by one.
/// Dimensions count from the logical rank of the first tensor argument. Per-example scalars have one dimension
/// meanwhile.
void vmap_along(VmapFrame& frame, const std::vector<uint8_t>& dims, EmptyDims empty = EmptyDims::none);
/// Puts the batch first; the operator takes leading dimensions as batch dimensions itself, and broadcasts them.
void vmap_natively(VmapFrame& frame);
/// Merges the batch with the leading dimension of items of every tensor (values of logical rank `rank`; those of rank
/// `rank - 1` are single items, for which the batch becomes the dimension of items).
void vmap_fold(VmapFrame& frame, int64_t rank);
/// Random numbers drawn element by element: every tensor is expanded over the batch.
void vmap_draw_elementwise(VmapFrame& frame);

// ---- derivatives ----

/// t times d, for a derivative that may be a number. One that was computed for this alone gives its memory.
Tensor times(const Tensor& t, Tensor&& d);
Tensor times(const Tensor& t, const at::Scalar& d);
/// t times the complex conjugate of d.
Tensor times_conjugate(const Tensor& t, Tensor&& d);
Tensor times_conjugate(const Tensor& t, const at::Scalar& d);
Tensor conjugate(const Tensor& t);
/// A reduced tensor with the reduced dimensions back as ones (`dims` of a tensor with `rank` dimensions, empty: all).
Tensor with_reduced_dims(Tensor reduced, at::IntArrayRef dims, int64_t rank, bool keepdim);
/// The operator itself on the tangents of the arguments in `linear` (zeros where undefined), the others as they are.
void jvp_by_calling(JvpFrame& frame, Mask linear);

}  // namespace tower::rules
