// LibTorch's hooks for saved tensors (torch.autograd.graph.saved_tensors_hooks) are Python objects, and meant for what
// LibTorch's own autograd saves. A tape refuses to record while such hooks are active on the thread.
#pragma once

namespace c10 {
struct SafePyObject;
}

namespace tower::detail {

/// Whether a tape may pass over the hooks with this pack hook, because what they give back is what they were given.
/// Set by a binding that can look into Python objects; null: no hooks are passed over.
extern bool (*may_pass_over_hooks)(const c10::SafePyObject& pack);

}  // namespace tower::detail
