#include "newton.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
  enum { n = 2 };
  float x[n][3] = { { 0 } }, load[n][3] = { { 1, 2, 3 }, { 3, 2, 1 } }, norm[n], next[n][3];
  float matrix[n][3][3] = { { { 5, 1, 0 }, { 1, 5, 1 }, { 0, 1, 5 } }, { { 4, 0, 1 }, { 0, 4, 0 }, { 1, 0, 4 } } };
  const float* arguments[] = { *x, *load, **matrix };
  float* results[] = { *next, norm };
  void* work = malloc((size_t)newton_work_bytes(n));
  for (int k = 0; k < 5; ++k) {
    if (newton(n, arguments, results, work)) return 1;
    for (int i = 0; i < n * 3; ++i) (*x)[i] = (*next)[i];
  }
  printf("%s\n", norm[0] < 1e-5 && norm[1] < 1e-5 ? "converged" : "not converged");
  free(work);
  return 0;
}
