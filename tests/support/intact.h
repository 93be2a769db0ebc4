// After an error the thread must be as it was before: nothing of a transform may be left behind.
#pragma once

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>

#include <string>

#include "core/level.h"
#include "support/expect.h"
#include "tower/dynamic.h"

namespace support {

/// Expects that no transform is running, that LibTorch's own state is untouched, and that a plain operator and a nested
/// transform work.
inline void expect_intact() {
  EXPECT_EQ(tower::top(), nullptr);
  EXPECT_EQ(tower::thread_state.recorder, nullptr);
  EXPECT_EQ(tower::thread_state.substitutions, nullptr);
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  EXPECT_FALSE(keys.included_.has(tower::kKey));
  EXPECT_FALSE(keys.excluded_.has(tower::kKey));
  EXPECT_FALSE(keys.excluded_.has(c10::DispatchKey::AutogradCPU));
  EXPECT_TRUE(c10::GradMode::is_enabled());

  const at::Tensor x = at::arange(1, 7, at::kDouble).view({2, 3});
  EXPECT_TRUE(same(x + 1, at::arange(2, 8, at::kDouble).view({2, 3})));
  const auto cubes = [](const Tensors& in) { return Tensors{(in[0] * in[0] * in[0]).sum()}; };
  const auto f = tower::dynamic::vmap(tower::dynamic::grad(cubes, {0}), {0}, {0});
  EXPECT_TRUE(same(f({x})[0], 3 * x * x));
}

/// The text of the Exception that `call` throws; also expects that it left nothing behind.
template <class Exception, class Call>
std::string refusal(Call&& call) {
  const std::string text = message_of<Exception>(call);
  expect_intact();
  return text;
}

/// Each of `parts` is in `text`.
inline testing::AssertionResult says(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (!contains(text, part)) return testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
  return testing::AssertionSuccess();
}

}  // namespace support
