#include "rules/rules.h"

#include "rules/registry.h"

namespace tower::rules {

void register_all() {
  arithmetic();
  elementary();
  special_functions();
  comparison();
  selection();
  complex();
  activations();
  activation_backwards();
  losses();
  class_losses();
  softmax();
  reductions();
  views();
  view_inverses();
  shapes();
  indexing();
  scatter();
  cumulative();
  sorting();
  factories();
  random();
  refusals();
  matmul();
  convolution();
  pooling();
  normalization();
  embedding();
  padding();
  resampling();
  linear_solve();
  factorizations();
  fourier();
}

}  // namespace tower::rules
