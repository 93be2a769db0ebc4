// Work that LibTorch's threads share.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace tower::compiler {

/// Calls `part(begin, end)` for parts of [0, count), on LibTorch's threads where that is more than `grain`, each part
/// on one of them. Which part runs on which is not known. What a part throws is thrown, once all have ended.
void share_among_threads(int64_t count, int64_t grain, c10::function_ref<void(int64_t begin, int64_t end)> part);

}  // namespace tower::compiler
