// The rule files, by family: one function each.
#pragma once

namespace tower::rules {

void arithmetic();
void elementary();
void special_functions();
void comparison();
void selection();
void complex();
void activations();
void activation_backwards();
void losses();
void class_losses();
void ctc_losses();
void softmax();
void reductions();
void views();
void view_inverses();
void shapes();
void indexing();
void scatter();
void index_put();
void segments();
void cumulative();
void sorting();
void histograms();
void factories();
void random();
void refusals();
void matmul();
void affine();
void attention();
void convolution();
void pooling();
void normalization();
void embedding();
void padding();
void resampling();
void grid_sampling();
void linear_solve();
void factorizations();
void orthogonal();
void fourier();
void lists();

}  // namespace tower::rules
