// Calls that call one operator, as calls of that one. For a custom operator that writes to its arguments, torch.export
// has a call that copies what is written and gives the copies (auto_functionalized); for one that is called for what it
// does, a call that passes a token from each to the next, which keeps their order (with_effects); for one that computes
// in a wider dtype, a call with that dtype (out_dtype). Here they are written as what they mean: copies, casts, and the
// operator, in the order of the file.
#pragma once

#include <functional>
#include <string>

#include "exported/schema.h"

namespace tower::exported {

/// What the file says of a tensor of a graph, by its name.
using FindMeta = std::function<TensorMeta(const std::string& name)>;

/// Rewrites the nodes of a graph; nothing of these calls is left, nor of the tokens between them. Throws FileError, and
/// NotSupported for what cannot be written so.
void unwrap_calls(Graph& graph, const FindMeta& meta_of);

}  // namespace tower::exported
