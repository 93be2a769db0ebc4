// What compiled functions of one tensor are once they went through files.
#pragma once

#include <tower/compile.h>

#include <vector>

#include "compile/files.h"
#include "support/prelude.h"

namespace support {

/// Compiled, called with `before`, saved and loaded, it gives of each of `xs` what `expected` gives.
template <class F, class Expected>
void expect_kept_as(const F& f, const Expected& expected, const std::vector<Tensor>& before,
                    const std::vector<Tensor>& xs) {
  using One = Tensor(Tensor);
  const Folder folder;
  const auto compiled = tower::compile(f);
  for (const Tensor& x : before) compiled(x);
  for (const Tensor& x : xs) EXPECT_TRUE(same(compiled(x), expected(x)));
  compiled.save(folder / "f");
  const auto loaded = tower::load<One>(folder / "f");
  for (int run = 0; run < 2; ++run)
    for (const Tensor& x : xs) EXPECT_TRUE(same(loaded(x), expected(x)));
  loaded.save(folder / "again");
  const auto again = tower::load<One>(folder / "again");
  for (const Tensor& x : xs) EXPECT_TRUE(same(again(x), expected(x)));
}

/// The same of what it gives without being compiled.
template <class F>
void expect_kept(const F& f, const std::vector<Tensor>& before, const std::vector<Tensor>& xs) {
  expect_kept_as(f, f, before, xs);
}

}  // namespace support
