// Calls of a compiled function in kernels that wait for each other. Oracle: the function itself on plain tensors.
#include <tower/compile.h>
#include <tower/dynamic.h>

#include "support/prelude.h"

namespace {

namespace td = tower::dynamic;
using td::Tensors;

// index_add(), which no kernel knows, is there twice, for values and tangents: there are two ways round it, and groups
// that were joined across the one were joined across the other, too. What waited for itself was never computed.
TEST(CompileGroups, NoneWaitsForItself) {
  const td::Function f = [](const Tensors& in) {
    const Tensor y = in[0].softmax(0), last = in[0].narrow(1, 0, 1);
    return Tensors{in[0] * 1, at::index_add(y, 1, at::zeros({1}, at::kLong), last) * 1};
  };
  const td::Function gradient = [f](const Tensors& x) {
    auto [outs, pullback] = td::vjp(f, x);
    Tensors results = pullback(outs);
    results.insert(results.end(), outs.begin(), outs.end());
    return results;
  };
  const td::Function g = [gradient](const Tensors& x) { return td::jvp(gradient, x, x).second; };
  const Tensors x{waves({1, 1})}, expected = g(x);
  const td::Function compiled = td::compile(g);
  for (int call = 0; call < 2; ++call) {
    const Tensors actual = compiled(x);
    for (size_t k = 0; k < expected.size(); ++k)
      EXPECT_TRUE(same(actual.at(k), expected[k])) << "call " << call << ", result " << k;
  }
}

}  // namespace
