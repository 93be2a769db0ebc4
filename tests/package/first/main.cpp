#include <ATen/Functions.h>
#include <tower/tower.h>

#include <iostream>

// Where the hand of a two-joint arm is. Written for one arm.
at::Tensor hand(const at::Tensor& angles) {
  const at::Tensor bent = angles.cumsum(0);
  return at::stack({bent.cos().sum(), bent.sin().sum()});
}

int main() {
  const at::Tensor arms = at::tensor({0.0, 0.5, 1.0, -1.0}).view({2, 2});
  std::cout << tower::vmap(tower::jacfwd(hand))(arms) << '\n';
}
