/* Abaqus's interface to the exported point, for Abaqus, and for programs that have it from there, such as CalculiX.
 * PROPS: E, nu, sigma_0, p_0 (material.h). STATEV: the equivalent plastic strain. Solid elements: NTENS is 6. */
#include "umat_point.h"

void umat_(double* stress, double* statev, double* ddsdde, double* sse, double* spd, double* scd, double* rpl,
           double* ddsddt, double* drplde, double* drpldt, const double* stran, const double* dstran,
           const double* time, const double* dtime, const double* temp, const double* dtemp, const double* predef,
           const double* dpred, const char* cmname, const int* ndi, const int* nshr, const int* ntens,
           const int* nstatv, const double* props, const int* nprops, const double* coords, const double* drot,
           double* pnewdt, const double* celent, const double* dfgrd0, const double* dfgrd1, const int* noel,
           const int* npt, const int* layer, const int* kspt, const int* kstep, const int* kinc, int cmname_length)
{
  double next[6], plastic_strain, tangent[6][6];
  const double* const arguments[] = { stress, dstran, statev, props };
  double* const results[] = { next, &plastic_strain, *tangent };
  char work[umat_point_work_bytes(1)];
  int i, j;
  (void)sse, (void)spd, (void)scd, (void)rpl, (void)ddsddt, (void)drplde, (void)drpldt, (void)stran, (void)time;
  (void)dtime, (void)temp, (void)dtemp, (void)predef, (void)dpred, (void)cmname, (void)ndi, (void)nshr, (void)nstatv;
  (void)nprops, (void)coords, (void)drot, (void)celent, (void)dfgrd0, (void)dfgrd1, (void)noel, (void)npt;
  (void)layer, (void)kspt, (void)kstep, (void)kinc, (void)cmname_length;
  if (*ntens != 6 || umat_point(1, arguments, results, work) != 0) {
    *pnewdt = 0.25; /* a smaller increment, please */
    return;
  }
  *statev = plastic_strain;
  for (i = 0; i < 6; ++i) {
    stress[i] = next[i];
    for (j = 0; j < 6; ++j) ddsdde[i + 6 * j] = tangent[i][j];
  }
}
