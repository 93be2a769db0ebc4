// How results lie in memory: outputs, gradients, tangents and Jacobians under transforms have the strides of the plain
// call's, an example under vmap with the batch dimension in front. The plain call is LibTorch's: its outputs, and its
// own autograd's gradients. What it gives with dimensions of one element, expanded or with gaps is left open. A
// gradient may also lie as what it is the gradient of, and a tangent lies as its output.
//
// One test runs the whole database, its samples laid out as they are written, with matrices by columns, and
// channels-last. TOWER_OPS leaves only the operators that match.
#pragma once

#include <string>
#include <vector>

namespace matrix {

/// Operators whose results of some kinds lie otherwise, and why. The test fails for others, and where one of these
/// agrees in all samples.
struct LaidOtherwise {
  struct Operators {
    std::string kinds;  // of "outputs gradients tangents"
    std::string names;
  };
  std::string reason;
  std::vector<Operators> operators;
};
const std::vector<LaidOtherwise>& laid_otherwise();

/// Registers the test; call before RUN_ALL_TESTS.
void register_layout_test(const std::string& op_db_folder);

}  // namespace matrix
