// Times several functions against each other with Google Benchmark. Repetitions of the functions are interleaved at
// random, and the fastest counts for each: what another program on the machine costs hits some repetitions of every
// function, not all repetitions of one, so ratios hold where absolute times do not. The clock is the calling thread's
// own: what is measured runs on one thread. On another device than the CPU it is the wall's, and each call ends when
// the device has done its work.
//
//   Race race(argc, argv);
//   race.add("plain", [&] { f(x); });
//   race.add("vmap", [&] { g(x); });
//   const auto ns = race.run();     // name -> CPU time of one call, in nanoseconds
//
// All of Google Benchmark's flags work; those given on the command line win over the ones set here.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/device.h"

/// Takes `--only=name`, a part of the names of the rows wanted, out of the arguments.
inline std::string only(int& argc, char** argv) {
  constexpr std::string_view flag = "--only=";
  std::string name;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(flag)) name = argv[i] + flag.size();
    else argv[kept++] = argv[i];
  }
  argc = kept;
  return name;
}

class Race {
 public:
  /// Takes Google Benchmark's flags out of argv; what it leaves there is the program's own.
  Race(int& argc, char** argv) {
    std::string interleave = "--benchmark_enable_random_interleaving=true";
    std::string repetitions = "--benchmark_repetitions=20";
    std::string min_time = "--benchmark_min_time=0.02";
    std::vector<char*> args{argv[0], interleave.data(), repetitions.data(), min_time.data()};
    args.insert(args.end(), argv + 1, argv + argc);
    int count = static_cast<int>(args.size());
    benchmark::Initialize(&count, args.data());
    argc = count;
    std::copy_n(args.begin(), count, argv);
  }

  void add(const std::string& name, std::function<void()> body) {
    benchmark::RegisterBenchmark(name.c_str(), [body = std::move(body)](benchmark::State& state) {
      for (auto _ : state) {
        body();
        bench::finish();
      }
    });
  }

  std::map<std::string, double> run() {
    Fastest fastest;
    benchmark::RunSpecifiedBenchmarks(&fastest);
    benchmark::Shutdown();
    return std::move(fastest.ns);
  }

 private:
  struct Fastest : benchmark::BenchmarkReporter {
    std::map<std::string, double> ns;

    bool ReportContext(const Context&) override { return true; }
    void ReportRuns(const std::vector<Run>& runs) override {
      for (const Run& run : runs) {
        if (run.run_type != Run::RT_Iteration) continue;
        const double seconds = bench::device().is_cpu() ? run.cpu_accumulated_time : run.real_accumulated_time;
        const double time = seconds * 1e9 / static_cast<double>(run.iterations);
        const auto [entry, is_new] = ns.emplace(run.run_name.function_name, time);
        if (!is_new) entry->second = std::min(entry->second, time);
      }
    }
  };
};
