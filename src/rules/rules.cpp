#include "rules/rules.h"

#include "records/overwriting.h"
#include "rules/half_types.h"
#include "rules/kernel_demands.h"
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
  ctc_losses();
  softmax();
  reductions();
  views();
  view_inverses();
  shapes();
  indexing();
  scatter();
  index_put();
  segments();
  cumulative();
  sorting();
  histograms();
  factories();
  random();
  refusals();
  matmul();
  affine();
  attention();
  convolution();
  pooling();
  normalization();
  embedding();
  padding();
  resampling();
  grid_sampling();
  linear_solve();
  factorizations();
  orthogonal();
  fourier();
  lists();
  kernel_demands();
  half_types();
  pointwise_into_spent();
}

}  // namespace tower::rules
