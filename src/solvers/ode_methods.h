// The methods of odeint: their coefficients, and one step by them.
//
// A step goes from y(t) to y(t + h) with an estimate of its error and, where it is asked for, a path between the two,
// the polynomial y(t) + θ(p₁ + θ(p₂ + θ(p₃ + …))) for θ from 0 to 1: the dense output.
#pragma once

#include <array>
#include <functional>
#include <memory>

#include "tower/dynamic.h"
#include "tower/odeint.h"

namespace tower::solvers {

using at::Tensor;

/// The right-hand side, of a time and one vector.
using Slope = std::function<Tensor(const Tensor& t, const Tensor& y)>;

struct OdeStep {
  Tensor y;
  Tensor error;
  Tensor coarse_error;      // an estimate of lower order, by which the first one is made smaller; or undefined
  dynamic::Tensors memory;  // what the next step begins with
  dynamic::Tensors path;    // p₁, p₂, …
};

/// How a step is made.
class OdeMethod {
 public:
  virtual ~OdeMethod() = default;
  /// One more than that of the embedded solution, by which the error is estimated.
  virtual int order() const = 0;
  /// How many p₁, p₂, … a path has.
  virtual size_t powers() const = 0;
  /// What the first step begins with, whose slope is `slope`.
  virtual dynamic::Tensors first_memory(const Tensor& slope) const = 0;
  virtual OdeStep step(const Slope& f, const Tensor& t, const Tensor& y, const dynamic::Tensors& memory,
                       const Tensor& h, bool with_path) const = 0;
};

/// The method that `options` name.
std::shared_ptr<const OdeMethod> ode_method(const OdeOptions& options);

/// An explicit Runge–Kutta pair whose last stage is the first one of the next step. `more` stages come behind that for
/// a path of `powers`.
template <size_t stages, size_t more, size_t powers>
struct ExplicitPair {
  static constexpr size_t kStages = stages, kAll = stages + more, kPowers = powers;
  using Row = std::array<double, kAll>;
  Row c;                                              // places of the stages
  std::array<Row, kAll> a;                            // row kStages − 1 is the solution
  Row error;                                          // the solution less the embedded one
  std::array<std::array<double, powers>, kAll> path;  // of each stage: by powers of θ
  Row coarse_error = {};                              // the solution less one of still lower order
  int order = 5;
};
using Pair5 = ExplicitPair<7, 0, 4>;

// Ch. Tsitouras, Runge–Kutta pairs of order 5(4) satisfying only the first column simplifying assumption, Computers &
// Mathematics with Applications 62 (2011) 770–775: the pair, and its interpolant, multiplied out.
inline constexpr Pair5 kTsit5{
    {0, 0.161, 0.327, 0.9, 0.9800255409045097, 1, 1},
    {{{},
      {0.161},
      {-0.008480655492356989, 0.335480655492357},
      {2.8971530571054935, -6.359448489975075, 4.3622954328695815},
      {5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525},
      {5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383},
      {0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774}}},
    {-0.00178001105222577714, -0.0008164344596567469, 0.007880878010261995, -0.1447110071732629, 0.5823571654525552,
     -0.45808210592918697, 0.015151515151515152},
    {{{1, -2.763706197274826, 2.9132554618219126, -1.0530884977290216},
      {0, 0.1317, -0.2234, 0.1017},
      {0, 3.9302962368947516, -5.941033872131505, 2.490627285651253},
      {0, -12.411077166933676, 30.33818863028232, -16.548102889244902},
      {0, 37.50931341651104, -88.1789048947664, 47.37952196281928},
      {0, -27.896526289197286, 65.09189467479366, -34.87065786149661},
      {0, 1.5, -4, 2.5}}}};

// J. R. Dormand, P. J. Prince, A family of embedded Runge–Kutta formulae, J. Comput. Appl. Math. 6 (1980) 19–26. The
// path: L. F. Shampine, Some practical Runge–Kutta formulas, Math. Comp. 46 (1986) 135–150.
inline constexpr Pair5 kDopri5{
    {0, 1. / 5, 3. / 10, 4. / 5, 8. / 9, 1, 1},
    {{{},
      {1. / 5},
      {3. / 40, 9. / 40},
      {44. / 45, -56. / 15, 32. / 9},
      {19372. / 6561, -25360. / 2187, 64448. / 6561, -212. / 729},
      {9017. / 3168, -355. / 33, 46732. / 5247, 49. / 176, -5103. / 18656},
      {35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84}}},
    {71. / 57600, 0, -71. / 16695, 71. / 1920, -17253. / 339200, 22. / 525, -1. / 40},
    {{{1, -8048581381. / 2820520608, 8663915743. / 2820520608, -12715105075. / 11282082432},
      {},
      {0, 131558114200. / 32700410799, -68118460800. / 10900136933, 87487479700. / 32700410799},
      {0, -1754552775. / 470086768, 14199869525. / 1410260304, -10690763975. / 1880347072},
      {0, 127303824393. / 49829197408, -318862633887. / 49829197408, 701980252875. / 199316789632},
      {0, -282668133. / 205662961, 2019193451. / 616988883, -1453857185. / 822651844},
      {0, 40617522. / 29380423, -110615467. / 29380423, 69997945. / 29380423}}}};

/// A Rosenbrock method in the form without products by the Jacobian (E. Hairer, G. Wanner, Solving Ordinary
/// Differential Equations II, IV.7): (1/(hγ) − J) uᵢ = f(t + cᵢ h, y + Σ aᵢⱼ uⱼ) + Σ Cᵢⱼ uⱼ / h + dᵢ h ∂f/∂t. It is
/// stiffly accurate: the last two stages begin where the one before ends, y(t + h) is where the last one does, and its
/// u is the error.
struct StiffPair {
  static constexpr size_t kStages = 8;
  using Row = std::array<double, kStages>;
  double gamma;
  Row c, d;
  std::array<Row, kStages> a;  // from y on; the last two rows add 1 for the stages before
  std::array<Row, kStages> c_by_h;
  std::array<Row, 3> path;  // k₁, k₂, k₃ of (1 − θ) y(t) + θ (y(t + h) + (1 − θ) (k₁ + θ (k₂ + θ k₃)))
};

// G. Steinebach, Construction of Rosenbrock–Wanner method Rodas5P and numerical benchmarks within the Julia
// Differential Equations package, BIT Numerical Mathematics 63 (2023) 27.
inline constexpr StiffPair kRodas5P{
    0.21193756319429014,
    {0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664, 1, 1, 1},
    {0.21193756319429014, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069},
    {{{},
      {3},
      {2.849394379747939, 0.45842242204463923},
      {-6.954028509809101, 2.489845061869568, -10.358996098473584},
      {2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641},
      {-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946},
      {-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946, 1},
      {-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946, 1, 1}}},
    {{{},
      {-14.155112264123755},
      {-17.97296035885952, -2.859693295451294},
      {147.12150275711716, -1.41221402718213, 71.68940251302358},
      {165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306},
      {24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471},
      {30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783, -19.097331116725623,
       -28.087943162872662},
      {37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047, -40.06618937091002,
       -54.66780262877968, -9.48861652309627}}},
    {{{25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204, 0.524948541321073,
       1.1241088310450404, 0.4272876194431874, -0.17202221070155493},
      {-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796, 20.176138334709044,
       15.98066361424651, -6.789040303419874, -6.710236069923372},
      {11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643, -52.072871366152654,
       -59.78993625266729, -0.15582684282751913, 4.883087185713722}}}};

}  // namespace tower::solvers
