// The interface is that of "Using external functions" in CasADi's user guide, and of casadi/core/external.cpp, which
// says which names are looked up.
#include "compile/casadi_function.h"

#include <algorithm>

#include "compile/program_text.h"
#include "kernels/template.h"

namespace tower::compiler {

std::string text_of_casadi_calls() {
  return R"(
/* ---- calls by CasADi ---- */

typedef long long int casadi_int;

/* Numbers of one of CasADi's matrices among those of a program. */
typedef struct CasadiPart {
  int64_t matrix;           /* of arg or res */
  int64_t count;
  const int32_t* places;    /* of each number; null: as they lie */
  const int32_t* numbers;   /* which they are; null: all */
} CasadiPart;

/* An argument or result of a program: of an argument there is one part. */
typedef struct CasadiOperand {
  int64_t count, parts;
  const CasadiPart* part;
  int64_t place;  /* in w, where its numbers are if they cannot be where CasADi has them */
} CasadiOperand;

typedef struct CasadiRun {
  const ProgramTables* tables;
  const CasadiOperand *arguments, *results;
  int64_t work;  /* place in w */
} CasadiRun;

/* Arguments that are null are zeros, and results that are null are not wanted. Pointers of the program stand in arg and
 * res behind CasADi's own. */
static int run_for_casadi(const CasadiRun* run, int64_t n_in, int64_t n_out, const double** arg, double** res, double* w)
{
  const double** const x = arg + n_in;
  double** const y = res + n_out;
  int64_t k, p, i;
  int wanted = 0, fault;
  for (k = 0; k < run->tables->results; ++k) {
    const CasadiOperand* const operand = &run->results[k];
    const CasadiPart* const part = operand->part;
    y[k] = w + operand->place;
    for (p = 0; p < operand->parts; ++p) wanted |= res[part[p].matrix] != 0;
    if (operand->parts == 1 && !part->places && !part->numbers && res[part->matrix]) y[k] = res[part->matrix];
  }
  if (!wanted) return 0;
  for (k = 0; k < run->tables->arguments; ++k) {
    const CasadiOperand* const operand = &run->arguments[k];
    const double* const from = arg[operand->part->matrix];
    double* const to = w + operand->place;
    x[k] = to;
    if (!from) memset(to, 0, (size_t)operand->count * sizeof(double));
    else if (!operand->part->places) x[k] = from;
    else
      for (i = 0; i < operand->count; ++i) to[operand->part->places[i]] = from[i];
  }
  fault = run_program(run->tables, 1, (const void* const*)x, (void* const*)y, w + run->work, 0);
  if (fault) return fault;
  for (k = 0; k < run->tables->results; ++k) {
    const CasadiOperand* const operand = &run->results[k];
    for (p = 0; p < operand->parts; ++p) {
      const CasadiPart* const part = &operand->part[p];
      double* const to = res[part->matrix];
      if (!to || to == y[k]) continue;
      for (i = 0; i < part->count; ++i)
        to[part->numbers ? part->numbers[i] : i] = y[k][part->places ? part->places[i] : i];
    }
  }
  return 0;
}
)";
}

namespace {

std::string decimal(int64_t n) { return std::to_string(n); }

// As CasADi has patterns: rows, columns, and for each column where its entries begin, and their rows; or dense.
std::vector<int64_t> as_casadi_has_it(const CasadiPattern& pattern) {
  if (pattern.is_dense) return {pattern.rows, pattern.columns, 1};
  std::vector<int64_t> numbers{pattern.rows, pattern.columns};
  auto next = pattern.entries.begin();
  for (int64_t column = 0; column <= pattern.columns; ++column) {
    next = std::find_if(next, pattern.entries.end(), [&](const auto& entry) { return entry.first >= column; });
    numbers.push_back(next - pattern.entries.begin());
  }
  for (const auto& entry : pattern.entries) numbers.push_back(entry.second);
  return numbers;
}

// The text of the operands of a run, which takes places in w from `place` on.
struct OperandsText {
  std::string name;
  int64_t place = 0;
  std::string tables = {};

  // Its name, or null.
  std::string table(const std::string& of, const std::vector<int64_t>& numbers) {
    if (numbers.empty()) return "0";
    tables += "static const int32_t " + of + "[] = {" + rows_of(numbers, decimal) + "};\n";
    return of;
  }

  std::string of(const std::vector<CasadiOperand>& operands, const char* kind) {
    std::string parts, list;
    int64_t next = 0;
    for (const CasadiOperand& operand : operands) {
      for (size_t p = 0; p < operand.parts.size(); ++p) {
        const CasadiPart& part = operand.parts[p];
        const std::string own = name + "_" + kind + decimal(next + static_cast<int64_t>(p));
        parts += "  {" + decimal(static_cast<int64_t>(part.matrix)) + ", " + decimal(part.count) + ", " +
                 table(own + "_places", part.places) + ", " + table(own + "_numbers", part.numbers) + "},\n";
      }
      list += "  {" + decimal(operand.count) + ", " + decimal(static_cast<int64_t>(operand.parts.size())) + ", " +
              name + "_" + kind + "_parts + " + decimal(next) + ", " + decimal(place) + "},\n";
      next += static_cast<int64_t>(operand.parts.size());
      place += operand.count;
    }
    tables += filled(R"(
static const CasadiPart {name}_{kind}_parts[] = {
{parts}};
static const CasadiOperand {name}_{kind}[] = {
{list}};
)",
                     Holes{{"name", name},
                           {"kind", kind},
                           {"parts", parts.empty() ? "  {0, 0, 0, 0},\n" : parts},
                           {"list", list.empty() ? "  {0, 0, 0, 0},\n" : list}});
    return name + "_" + kind;
  }
};

constexpr int64_t kBytes = 8;  // of a number

std::string patterns_text(const std::vector<CasadiMatrix>& matrices, const std::string& name) {
  std::string text, list;
  for (size_t k = 0; k < matrices.size(); ++k) {
    const std::string table = name + decimal(static_cast<int64_t>(k));
    text += "static const casadi_int " + table + "[] = {" + rows_of(as_casadi_has_it(matrices[k].pattern), decimal) +
            "};\n";
    list += " " + table + ",";
  }
  return text + "static const casadi_int* const " + name + "[] = {" + (list.empty() ? " 0" : list) + " };\n";
}

std::string names_text(const std::vector<CasadiMatrix>& matrices) {
  return rows_of(matrices, [](const CasadiMatrix& m) { return '"' + m.name + '"'; });
}

std::string differentiated_text(const std::vector<CasadiMatrix>& matrices) {
  return rows_of(matrices, [](const CasadiMatrix& m) { return decimal(m.is_differentiated); });
}

std::string list_of_matrices(const std::vector<CasadiMatrix>& matrices, const char* list) {
  std::string text;
  for (size_t k = 0; k < matrices.size(); ++k) {
    const CasadiPattern& pattern = matrices[k].pattern;
    text += std::string(" *   ") + list + "[" + decimal(static_cast<int64_t>(k)) + "]  " + matrices[k].name + ", " +
            decimal(pattern.rows) + " by " + decimal(pattern.columns) +
            (pattern.is_dense ? "" : ", " + decimal(pattern.count()) + " numbers") + "\n";
  }
  return text;
}

}  // namespace

std::string CasadiFunction::declaration() const {
  return filled(
      R"(
/* {name}:
 *
{arguments}{results} */
int {name}(const double** arg, double** res, long long int* iw, double* w, int mem);
int {name}_work(long long int* sz_arg, long long int* sz_res, long long int* sz_iw, long long int* sz_w);
long long int {name}_n_in(void);
long long int {name}_n_out(void);
const char* {name}_name_in(long long int i);
const char* {name}_name_out(long long int i);
const long long int* {name}_sparsity_in(long long int i);
const long long int* {name}_sparsity_out(long long int i);
double {name}_default_in(long long int i);
int {name}_diff_in(long long int i);
int {name}_diff_out(long long int i);
int {name}_alloc_mem(void);
int {name}_init_mem(int mem);
void {name}_free_mem(int mem);
int {name}_checkout(void);
void {name}_release(int mem);
void {name}_incref(void);
void {name}_decref(void);
)",
      Holes{{"name", name},
            {"arguments", list_of_matrices(arguments, "arg")},
            {"results", list_of_matrices(results, "res")}});
}

std::string CasadiFunction::text() const {
  std::string tables, list;
  int64_t most_arguments = 0, most_results = 0, most_work = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const CasadiRun& run = runs[r];
    OperandsText text{name + "_run" + decimal(static_cast<int64_t>(r))};
    const std::string in = text.of(run.arguments, "in"), out = text.of(run.results, "out");
    tables += text.tables;
    list += "  {&" + run.name + "_tables, " + in + ", " + out + ", " + decimal(text.place) + "},\n";
    most_arguments = std::max(most_arguments, run.tables->arguments);
    most_results = std::max(most_results, run.tables->results);
    most_work = std::max(most_work, text.place + (work_bytes_for(run.tables, 1) + kBytes - 1) / kBytes);
  }
  const auto n_in = static_cast<int64_t>(arguments.size()), n_out = static_cast<int64_t>(results.size());
  return filled(R"(

/* ---- {name}, as CasADi calls it ---- */

{tables}
{patterns_in}
{patterns_out}
static const char* const {name}_names_in[] = {{names_in}};
static const char* const {name}_names_out[] = {{names_out}};
static const int {name}_differentiated[] = {{differentiated}};
static const int {name}_differentiable[] = {{differentiable}};
static const CasadiRun {name}_runs[] = {
{runs}};

int {name}(const double** arg, double** res, casadi_int* iw, double* w, int mem)
{
  int64_t run;
  (void)iw;
  (void)mem;
  for (run = 0; run < {number_of_runs}; ++run) {
    const int fault = run_for_casadi(&{name}_runs[run], {n_in}, {n_out}, arg, res, w);
    if (fault) return fault;
  }
  return 0;
}

int {name}_work(casadi_int* sz_arg, casadi_int* sz_res, casadi_int* sz_iw, casadi_int* sz_w)
{
  if (sz_arg) *sz_arg = {sz_arg};
  if (sz_res) *sz_res = {sz_res};
  if (sz_iw) *sz_iw = 0;
  if (sz_w) *sz_w = {sz_w};
  return 0;
}

casadi_int {name}_n_in(void) { return {n_in}; }
casadi_int {name}_n_out(void) { return {n_out}; }
const char* {name}_name_in(casadi_int i) { return i < {n_in} ? {name}_names_in[i] : 0; }
const char* {name}_name_out(casadi_int i) { return i < {n_out} ? {name}_names_out[i] : 0; }
const casadi_int* {name}_sparsity_in(casadi_int i) { return i < {n_in} ? {name}_patterns_in[i] : 0; }
const casadi_int* {name}_sparsity_out(casadi_int i) { return i < {n_out} ? {name}_patterns_out[i] : 0; }
double {name}_default_in(casadi_int i) { (void)i; return 0; }
int {name}_diff_in(casadi_int i) { return {name}_differentiated[i]; }
int {name}_diff_out(casadi_int i) { return {name}_differentiable[i]; }
int {name}_alloc_mem(void) { return 0; }
int {name}_init_mem(int mem) { (void)mem; return 0; }
void {name}_free_mem(int mem) { (void)mem; }
int {name}_checkout(void) { return 0; }
void {name}_release(int mem) { (void)mem; }
void {name}_incref(void) {}
void {name}_decref(void) {}
)",
                Holes{{"name", name},
                      {"tables", tables},
                      {"patterns_in", patterns_text(arguments, name + "_patterns_in")},
                      {"patterns_out", patterns_text(results, name + "_patterns_out")},
                      {"names_in", names_text(arguments)},
                      {"names_out", names_text(results)},
                      {"differentiated", differentiated_text(arguments)},
                      {"differentiable", differentiated_text(results)},
                      {"runs", runs.empty() ? "  {0, 0, 0, 0},\n" : list},
                      {"number_of_runs", decimal(static_cast<int64_t>(runs.size()))},
                      {"n_in", decimal(n_in)},
                      {"n_out", decimal(n_out)},
                      {"sz_arg", decimal(n_in + most_arguments)},
                      {"sz_res", decimal(n_out + most_results)},
                      {"sz_w", decimal(most_work)}});
}

}  // namespace tower::compiler
