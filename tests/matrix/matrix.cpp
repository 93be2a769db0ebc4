// Registration of the matrix's tests, reports, totals.
#include "matrix/matrix.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tower/coverage.h>
#include <tower/errors.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "support/device.h"
#include "support/seeds.h"

namespace matrix {

Totals& totals() {
  static Totals instance;
  return instance;
}

// ---- reports -------------------------------------------------------------------------------------------------------

void Report::enter(const op_db::Sample& sample, at::ScalarType dtype) {
  where_ = entry_.name + "(" + sample.text + ") in " + c10::toString(dtype);
}

void Report::run(const std::string& check, const std::function<void()>& body) {
  if (failures_ >= 5) return;
  check_ = check;
  if (!entry_.refuses(check)) {
    try {
      body();
    } catch (const std::exception& error) {
      fail("threw", error.what());
    }
    return;
  }
  ++totals().comparisons;
  try {
    body();
    fail("", "did not end in a tower::Error, as the database says it must: " + entry_.notes.at("refuses " + check));
  } catch (const tower::Error&) {
    ++totals().refusals;
  } catch (const std::exception& error) {
    fail("ended in something else than a tower::Error", error.what());
  }
}

void Report::run_or_refuse(const std::string& check, const std::function<void()>& body) {
  run(check, [&] {
    try {
      body();
    } catch (const tower::Error&) {
      ++totals().comparisons;
      ++totals().refusals;
    }
  });
}

void Report::expect(const std::string& what, const std::string& difference) {
  ++totals().comparisons;
  if (!difference.empty()) fail(what, difference);
}

void Report::expect_close(const std::string& what, double actual, double expected, double tolerance) {
  ++totals().comparisons;
  if (std::abs(actual - expected) <= tolerance) return;
  fail(what, "got " + std::to_string(actual) + ", expected " + std::to_string(expected) + ", error " +
                 std::to_string(std::abs(actual - expected)) + " > " + std::to_string(tolerance));
}

void Report::fail(const std::string& what, const std::string& message) {
  if (++failures_ > 5) return;
  // The first lines say it; LibTorch appends a backtrace.
  const auto backtrace = message.find("\nException raised from");
  ADD_FAILURE() << where_ << "\n  check " << check_ << (what.empty() ? "" : ": ") << what << "\n  "
                << message.substr(0, backtrace);
}

bool runs_on_device(const Case& c) {
  return support::runs_on_device(c.entry.name, [&] {
    const Problem problem = problem_of(c);
    problem.f(problem.examples[0]);
  });
}

bool loses_device(const Case& c) {
  return support::loses_device(*c.entry.op,
                               op_db::fill_in(c.sample, op_db::make_leaves(c.entry, c.sample, c.dtype, 0)));
}

// ---- tests ---------------------------------------------------------------------------------------------------------

namespace {

using Check = std::function<void(const Case&)>;

std::vector<at::ScalarType> dtypes_of(const op_db::Entry& entry) {
  std::vector<at::ScalarType> dtypes;
  if (entry.real) dtypes.push_back(at::kDouble);
  if (entry.real && !entry.has("no_float32")) dtypes.push_back(at::kFloat);
  if (entry.complex) dtypes.push_back(at::kComplexDouble);
  return dtypes;
}

// Which samples a group of checks takes. Where there are several, each is compiled in one of two ways, as it is or over
// examples, and of three or more a third in neither, by the operator's `turn`; all in both where tests are whole.
enum class Samples { good, compiled, compiled_lanes, bad, all };

class OperatorTest : public testing::Test {
 public:
  OperatorTest(std::shared_ptr<const op_db::Entry> entry, Check check, Samples samples, size_t turn)
      : entry_(std::move(entry)), check_(std::move(check)), samples_(samples), turn_(turn) {}

  void TestBody() override {
    const FallbackIsError guard(!entry_->fallback);
    const long before = totals().comparisons;
    const long left_out = support::calls_left_out();
    Report report(*entry_);
    check(true, report);
    if (totals().comparisons == before) check(false, report);  // where those have nothing to compare, the others
    if (support::calls_left_out() > left_out && totals().comparisons == before)
      GTEST_SKIP() << "left out on " << support::device();
    EXPECT_GT(totals().comparisons, before) << "nothing was compared: this test cannot fail";
  }

 private:
  // The samples that are taken, or those that are not.
  void check(bool taken, Report& report) {
    for (const auto dtype : dtypes_of(*entry_)) {
      size_t good = 0;
      for (const auto& text : entry_->sample_texts) {
        const bool bad = text[0] == '!';
        if ((bad || takes(good++)) != taken) continue;
        if (samples_ != Samples::all && bad != (samples_ == Samples::bad)) continue;
        op_db::Sample sample;
        ASSERT_NO_THROW(sample = op_db::parse_sample(*entry_, text, dtype)) << entry_->name << "(" << text << ")";
        report.enter(sample, dtype);
        const Case c{*entry_, sample, dtype, report};
        if (bad ? loses_device(c) : !runs_on_device(c)) continue;
        report.run("check", [&] { check_(c); });
      }
    }
  }

  // The good sample of a number.
  bool takes(size_t number) const {
    const bool lanes = samples_ == Samples::compiled_lanes;
    if (support::whole()) return true;
    // What an operator takes for the CPU's every fourth sample shows.
    if (support::device().type() == at::kPrivateUse1 && number % 4 != 0) return false;
    if (!lanes && samples_ != Samples::compiled) return true;
    const size_t all = std::min(entry_->compiled_samples, entry_->good_samples());
    return number < all && (all == 1 || (number + turn_ * (all > 2)) % std::min<size_t>(all, 3) == lanes);
  }

  std::shared_ptr<const op_db::Entry> entry_;
  Check check_;
  Samples samples_;
  size_t turn_;
};

class ServedTest : public testing::Test {
 public:
  explicit ServedTest(std::shared_ptr<const op_db::Entry> entry) : entry_(std::move(entry)) {}
  void TestBody() override {
    Report report(*entry_);
    check_served(*entry_, report);
  }

 private:
  std::shared_ptr<const op_db::Entry> entry_;
};

// An operator may have several entries, with different notes; the later ones are numbered.
void register_test(const op_db::Entry& entry, const std::string& group, const std::function<testing::Test*()>& make) {
  static std::map<std::string, int> seen;
  const int number = ++seen[entry.family + entry.name + group];
  const std::string name = entry.name + (number == 1 ? "" : "#" + std::to_string(number)) + "/" + group;
  testing::RegisterTest(("matrix_" + entry.family).c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__, make);
}

// LibTorch warns once of operators that it deprecates; that is of no interest here.
class Silent : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

bool entry_has_derivatives(const op_db::Entry& entry) {
  for (const auto& text : entry.sample_texts) {
    if (text[0] == '!') continue;
    try {
      const auto dtype = dtypes_of(entry)[0];
      const auto sample = op_db::parse_sample(entry, text, dtype);
      Report report(entry);
      if (has_derivatives(differentiable_problem_of({entry, sample, dtype, report}))) return true;
    } catch (const std::exception&) {
      return true;  // the group "samples" says what is wrong with it
    }
  }
  return false;
}

using Nesting = std::vector<std::string>;  // from the outside in

bool twice_differentiated(const Nesting& nesting) {
  return std::count(nesting.begin(), nesting.end(), "vmap") + 1 < static_cast<long>(nesting.size());
}

std::vector<Nesting> nestings(const op_db::Entry& entry, bool derivatives) {
  std::vector<std::string> transforms;
  if (!entry.refuses("vmap")) transforms.emplace_back("vmap");
  if (derivatives && !entry.refuses("vjp")) transforms.emplace_back("vjp");
  if (derivatives && !entry.refuses("jvp")) transforms.emplace_back("jvp");
  const bool triples = entry.triples || std::getenv("TOWER_TRIPLES") != nullptr;
  std::vector<Nesting> result;
  const auto add = [&](Nesting nesting) {
    if (!entry.has("no_second") || !twice_differentiated(nesting)) result.push_back(std::move(nesting));
  };
  for (const auto& a : transforms) {
    for (const auto& b : transforms) {
      add({a, b});
      for (const auto& c : transforms) {
        if (triples) add({a, b, c});
      }
    }
  }
  return result;
}

constexpr size_t kDeepNestings = 3;

std::vector<Nesting> compiled_nestings(const op_db::Entry& entry, bool derivatives) {
  std::vector<Nesting> result{{}};
  for (const Nesting& nesting :
       std::vector<Nesting>{{"vmap"}, {"vjp"}, {"jvp"}, {"vmap", "vjp"}, {"vjp", "vmap"}, {"jvp", "vjp"}}) {
    const bool refused = std::any_of(nesting.begin(), nesting.end(), [&](const auto& t) { return entry.refuses(t); });
    const bool maps_only = nesting == std::vector<std::string>{"vmap"};
    if (refused || !(derivatives || maps_only) || (entry.has("no_second") && twice_differentiated(nesting))) continue;
    result.push_back(nesting);
  }
  return result;
}

std::string name_of(const Nesting& nesting) {
  std::string name;
  for (const auto& transform : nesting) name += (name.empty() ? "" : "(") + transform;
  return name + std::string(nesting.size() - 1, ')');
}

}  // namespace

void register_tests(const std::string& op_db_folder) {
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  size_t all_entries = 0;
  for (auto& loaded : op_db::load(op_db_folder)) {
    if (loaded.has("no_samples")) continue;
    const auto entry = std::make_shared<const op_db::Entry>(std::move(loaded));
    totals().names.insert(entry->full_name());
    totals().samples += static_cast<long>(entry->sample_texts.size());
    const auto add = [&](const std::string& group, Check check, Samples samples = Samples::good) {
      register_test(*entry, group, [=, turn = all_entries] { return new OperatorTest(entry, check, samples, turn); });
    };
    const bool derivatives = entry_has_derivatives(*entry);
    add("samples", check_samples, Samples::all);
    if (!entry->fallback) register_test(*entry, "served", [=] { return new ServedTest(entry); });
    add("vmap", check_vmap);
    if (derivatives) add("vjp", check_vjp);
    if (derivatives) add("jvp", check_jvp);
    for (const auto& nesting : nestings(*entry, derivatives)) {
      add(name_of(nesting), [nesting](const Case& c) { check_nesting(nesting, c); });
    }
    // Of what nests two transforms each operator has one, in turn, but where tests are whole.
    const size_t turn = all_entries;
    add(
        "compiled",
        [all = compiled_nestings(*entry, derivatives), turn](const Case& c) {
          size_t deep = 0;
          for (const auto& nesting : all) {
            if (nesting.size() > 1 && deep++ != turn % kDeepNestings && !support::whole()) continue;
            // Kernels of float32 are those of float64 but for the type: values, maps and gradients show it.
            if (c.dtype == at::kFloat && c.entry.real && (nesting.size() > 1 || nesting == Nesting{"jvp"}) &&
                !support::whole())
              continue;
            c.report.run("compile" + (nesting.empty() ? "" : "(" + name_of(nesting) + ")"),
                         [&] { check_compiled(nesting, c); });
          }
        },
        Samples::compiled);
    if (!entry->refuses("vmap") && !entry->unspecified) {
      add(
          "compiled_lanes",
          [derivatives, turn](const Case& c) {
            c.report.run("compile(vmap)", [&] { check_compiled_lanes("", c); });
            for (const std::string inner : {"vjp", "jvp"})
              if (derivatives && c.dtype != at::kFloat && !c.entry.refuses(inner) &&
                  (inner == "vjp" || turn % kDeepNestings == 0 || support::whole()))
                c.report.run("compile(vmap(" + inner + "))", [&] { check_compiled_lanes(inner, c); });
          },
          Samples::compiled_lanes);
    }
    if (!entry->has("no_variants") && has_in_place_variant(*entry)) add("in_place", check_in_place);
    if (!entry->has("no_variants") && has_out_variant(*entry)) add("out", check_out);
    const auto& texts = entry->sample_texts;
    const bool bad = std::any_of(texts.begin(), texts.end(), [](const auto& text) { return text[0] == '!'; });
    if (bad) add("errors", check_errors, Samples::bad);
    ++all_entries;
  }
}

void print_totals() {
  const Totals& t = totals();
  if (t.comparisons == 0) return;
  std::set<std::string> with_fallback;
  std::map<std::string, long> by_kind;
  for (const auto& row : tower::coverage()) {
    if (t.names.count(row.op) == 0) continue;
    // "family: pointwise" and "refused: because" are counted by what stands before the colon.
    by_kind[row.served.substr(0, row.served.find(':'))] += 1;
    if (is_last_resort(row.served)) with_fallback.insert(row.op);
  }
  std::printf("matrix: %zu operators (%zu by rules of their own under every transform), %ld samples, %ld comparisons, ",
              t.names.size(), t.names.size() - with_fallback.size(), t.samples, t.comparisons);
  std::printf("%ld declared or allowed refusals\nserved, operator x transform:", t.refusals);
  for (const auto& [kind, count] : by_kind) std::printf(" %s %ld;", kind.c_str(), count);
  std::printf("\n");
}

}  // namespace matrix
