// The operator's command `poseidon`: parses the call, runs one subcommand, turns its status into an
// exit code.

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/checkpoint_command.h"
#include "cli/commands/commands.h"
#include "cli/commands/data_command.h"
#include "cli/commands/stop_command.h"
#include "cli/commands/tls_command.h"
#include "cli/commands/top_command.h"
#include "cli/commands/trace_command.h"
#include "cli/doctor/doctor_command.h"
#include "cli/terminal/outcome.h"
#include "common/base/text.h"
#include "common/daemon/command_line.h"
#include "common/daemon/daemon.h"
#include "common/security/security.h"
#include "spdlog/spdlog.h"
#include "worker/data/feed/batches.h"
#include "worker/data/formats/record_format.h"

namespace poseidon {
namespace {

/// CLI::Range takes NaN for a number in any range.
CLI::Validator is_in(double low, double high) {
  return {[low, high](std::string& text) {
            double value = 0.0;
            if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) {
              return std::string();
            }
            return absl::StrCat("Value ", text, " not in range [", low, " - ", high, "]");
          },
          absl::StrCat("FLOAT in [", low, " - ", high, "]")};
}

void add_coordinator_options(CLI::App& app, CoordinatorAccess& access) {
  app.add_option("--coordinator", access.coordinator, "HOST:PORT of poseidon-coordinator")
      ->required();
  app.add_option_function<std::int64_t>(
         "--connect-timeout-s",
         [&access](const std::int64_t& seconds) {
           access.connect_timeout = std::chrono::seconds(seconds);
         },
         "how long to wait for a coordinator that is not there yet (default 10)")
      ->check(CLI::Range(1, 3600));
  add_security_options(app, access.security);
}

void add_follow_options(CLI::App& app, FollowOptions& options) {
  app.add_flag("--wait", options.wait, "show progress until the job ends; exit with its outcome");
  app.add_option_function<std::int64_t>(
         "--coordinator-away-s",
         [&options](const std::int64_t& seconds) {
           options.coordinator_away = std::chrono::seconds(seconds);
         },
         "with --wait: how long the coordinator may be silent (default 3600)")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS));
}

void add_local(CLI::App& app, LocalOptions& options) {
  app.add_option("job", options.job_path, "job file (JSON)")->required();
  // Zero and nonsense are refused in our own words by run_local.
  app.add_option("--workers", options.workers, "worker processes")->required();
  app.add_option("--servers", options.servers, "parameter server processes")->required();
  app.add_option("--run-dir", options.run_dir,
                 "folder for the model, metrics and logs (default runs/<job name>-<time>)");
  app.add_option("--device", options.device,
                 "what every worker computes on: auto, cpu or cuda:N (several may share one GPU)")
      ->capture_default_str();
  app.add_flag("--metrics", options.metrics,
               "every process serves Prometheus; the list of targets is in the run directory");
  app.footer(
      "Starts a coordinator, servers and workers as processes of this machine, trains the job,\n"
      "and stops them. Leaves model.safetensors, metrics.jsonl and logs/ in the run directory.\n\n"
      "Example:\n  poseidon local deploy/jobs/digits.json --workers 4 --servers 2");
}

void add_submit(CLI::App& app, SubmitOptions& options) {
  app.add_option("job", options.job_path, "job file (JSON)")->required();
  add_coordinator_options(app, options);
  app.add_option("--workers", options.workers,
                 "use exactly N workers (default: start with those that are connected, at least "
                 "membership.min_workers, and add others as they join)");
  app.add_option("--servers", options.servers,
                 "use exactly N servers (default: all that are connected)");
  app.add_option("--run-dir", options.run_dir,
                 "absolute folder on the coordinator's machine (default: in its state directory)");
  add_follow_options(app, options.follow);
  app.footer(
      "Data paths in the job must be valid on every worker's machine; relative ones are made\n"
      "absolute against the job file's folder here.\n\n"
      "Example:\n  poseidon submit job.json --coordinator 10.0.0.1:4700 --workers 4 --wait");
}

void add_stop(CLI::App& app, StopOptions& options) {
  add_coordinator_options(app, options);
  app.add_option("--job", options.job,
                 "id, as `submit` and `status` print it: stop only this job (default: the "
                 "current one)");
  app.add_option("--checkpoint-within-s", options.checkpoint_within_s,
                 "time limit of a final checkpoint; 0: none")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app.footer(
      "The cluster stays, and takes the next job. `poseidon checkpoint restore` goes on from "
      "there.\n"
      "Exit code 1 when the checkpoint could not be taken.\n\n"
      "Example:\n  poseidon stop --coordinator 10.0.0.1:4700");
}

void add_status(CLI::App& app, StatusOptions& options) {
  add_coordinator_options(app, options);
  app.add_flag("--json", options.json, "one JSON object for scripts");
  app.footer(
      "Examples:\n  poseidon status --coordinator 10.0.0.1:4700\n"
      "  poseidon status --coordinator 10.0.0.1:4700 --json");
}

void add_top(CLI::App& app, TopOptions& options) {
  add_coordinator_options(app, options);
  app.add_flag("--json", options.json, "one JSON object per line for scripts, as status --json");
  app.add_option("--interval-s", options.interval_s, "seconds between refreshes")
      ->check(is_in(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--frames", options.frames, "exit after N refreshes; 0: never")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.footer(
      "q or Ctrl-C ends it, any other key looks at once. Workers that compute longest come first\n"
      "(the others wait for them), then layers that computing waits for most.\n\n"
      "Example:\n  poseidon top --coordinator 10.0.0.1:4700");
}

void add_trace(CLI::App& app, TraceOptions& options) {
  add_coordinator_options(app, options);
  app.add_option("--to", options.to, "JSON file to write, on this machine")->required();
  app.add_option("--iterations", options.iterations, "number of iterations to trace")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--timeout-s", options.timeout_s, "timeout; then writes a partial trace")
      ->check(CLI::Range(1, 600))
      ->capture_default_str();
  app.footer(
      "The file is in Chrome's trace event format: https://ui.perfetto.dev shows it, one process\n"
      "per worker and server, clocks aligned. Training goes on meanwhile.\n\n"
      "Example:\n  poseidon trace --coordinator 10.0.0.1:4700 --iterations 10 --to trace.json");
}

void add_doctor(CLI::App& app, DoctorOptions& options) {
  add_coordinator_options(app, options);
  app.add_flag("--json", options.json, "one JSON object for scripts");
  app.add_option("--iterations", options.iterations,
                 "number of iterations to trace to look at (default: some seconds of them)")
      ->check(CLI::Range(2, 1000));
  app.footer(
      "Takes a short trace, looks at it, at the status and at the counters that nodes report, and\n"
      "says what limits the job: which node, link, server, disk, layer or machine, what it costs,\n"
      "and what to do.\n\n"
      "Example:\n  poseidon doctor --coordinator 10.0.0.1:4700");
}

void add_plan(CLI::App& app, PlanOptions& options) {
  app.add_option("job", options.job_path, "job file (JSON); its data need not be here")->required();
  app.add_option("--workers", options.workers, "workers to plan for")->required();
  app.add_option("--servers", options.servers, "parameter servers to plan for")->required();
  app.add_option("--bandwidth", options.bandwidth,
                 "of each machine, each way: 10gbit, 200mbit, 1.25gbyte (default 10gbit)");
  app.add_option("--latency", options.latency, "one way: 50us, 1ms (default 50us)");
  app.add_option("--device-flops", options.device_flops,
                 "matrix products on one worker: 6e12, 6T, 312TFLOPS (default: as fast as "
                 "--images-per-s tells, else 6T)");
  app.add_option(
      "--images-per-s", options.images_per_s,
      "training speed of one worker alone (default: from the network and --device-flops)");
  app.add_option("--workers-per-machine", options.workers_per_machine,
                 "how many share a machine and its link, as with several GPUs (default 1)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--separate-servers", options.separate_servers,
               "servers on machines of their own (default: on the workers' machines)");
  app.add_flag("--json", options.json, "JSON for scripts; also good for a job's sync.plan");
  app.footer(
      "Says per layer what each scheme would move and cost, which one is chosen and why, and\n"
      "predicts the iteration, here and on 1 to 64 workers. Needs no cluster. Without any of the\n"
      "four speeds the schemes are those that move the fewest bytes.\n\n"
      "Example:\n  poseidon plan job.json --workers 16 --servers 16 --bandwidth 10gbit "
      "--images-per-s 35");
}

void add_models(CLI::App& app, ModelsOptions& options) {
  app.add_option("name", options.name, "a shipped network, or the path of a network file");
  app.add_flag("--json", options.json, "JSON for scripts");
  app.footer("Examples:\n  poseidon models\n  poseidon models lenet --json");
}

void add_source(CLI::App& app, DataSourceOptions& options) {
  app.add_option("source", options.sources,
                 "folder (image_folder, records) or files (cifar10, cifar100; idx: images, labels)")
      ->required();
  app.add_option(
      "--format", options.format,
      "idx, cifar10, cifar100, image_folder or records (default: by what a folder holds)");
  app.add_option("--labels", options.labels, "cifar100: fine (default) or coarse");
  app.add_option("--threads", options.threads, "decoding threads; 0: all cores")
      ->check(CLI::Range(0, kMaxDataThreads))
      ->capture_default_str();
}

/// `poseidon data`, which has subcommands of its own.
void add_data(CLI::App& app, DataPackOptions& pack, DataSourceOptions& check) {
  app.require_subcommand(1);
  app.footer(
      "'poseidon data SUBCOMMAND --help' tells more.\n\n"
      "Example:\n  poseidon data check imagenet/train");
  CLI::App* pack_command = app.add_subcommand("pack", "Pack samples into record files");
  add_source(*pack_command, pack.source);
  pack_command->add_option("--to", pack.to, "folder to create; it must not exist")->required();
  auto* shards = pack_command->add_option("--shards", pack.shards, "exactly N files");
  shards->check(CLI::Range(std::int64_t{1}, kMaxShards));
  pack_command
      ->add_option("--shard-bytes", pack.shard_bytes,
                   "start a new file after this size (default 1GiB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 50))
      ->excludes(shards);
  pack_command
      ->add_option("--max-corrupt-share", pack.max_corrupt_share,
                   "largest share of unreadable samples to skip")
      ->check(is_in(0.0, 1.0))
      ->capture_default_str();
  pack_command->footer(
      "Reads and decodes every sample, leaves out and names those that cannot be read, and writes\n"
      "the others as they are. The folder appears when all of it is on disk.\n\n"
      "Examples:\n  poseidon data pack imagenet/train --to imagenet-train --shard-bytes 1GiB\n"
      "  poseidon data pack train-images.gz train-labels.gz --format idx --to digits --shards 1");
  CLI::App* check_command =
      app.add_subcommand("check", "Read and decode every sample; name those that cannot be read");
  add_source(*check_command, check);
  check_command->footer(
      "Exit code 1 when there are any.\n\nExample:\n  poseidon data check imagenet/train");
}

struct CheckpointOptions {
  CheckpointListOptions list;
  CheckpointSaveOptions save;
  CheckpointExportOptions export_to;
  CheckpointRestoreOptions restore;
  CheckpointRemoveOptions remove;
};

void add_checkpoint_id(CLI::App& app, std::string& checkpoint) {
  app.add_option("--checkpoint", checkpoint, "id, as in the list (default: the newest)");
}

void add_checkpoint_remove(CLI::App& app, CheckpointRemoveOptions& options) {
  add_coordinator_options(app, options);
  CLI::Option* ids =
      app.add_option("--checkpoint", options.checkpoints, "ids, as in the list")->expected(1, -1);
  CLI::Option* job =
      app.add_option("--job", options.job, "id of a job, as in the list: all of its checkpoints");
  app.add_option("--keep", options.keep, "with --job: keep the N newest")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30))
      ->needs(job);
  ids->excludes(job);
  app.callback([ids, job] {
    if (ids->empty() && job->empty()) {
      throw CLI::RequiredError("--checkpoint or --job");
    }
  });
  app.footer(
      "Those of the job in progress are not removed: it keeps as many as its checkpoint.keep\n"
      "says. Prints the ids; servers give the room back in the background.\n\n"
      "Example:\n"
      "  poseidon checkpoint remove --job digits-3 --keep 1 --coordinator 10.0.0.1:4700");
}

/// `poseidon checkpoint`, which has subcommands of its own.
void add_checkpoint(CLI::App& app, CheckpointOptions& options) {
  app.require_subcommand(1);
  app.footer(
      "'poseidon checkpoint SUBCOMMAND --help' tells more.\n\n"
      "Example:\n  poseidon checkpoint list --coordinator 10.0.0.1:4700");
  CLI::App* list = app.add_subcommand("list", "The checkpoints of all jobs, oldest first");
  add_coordinator_options(*list, options.list);
  list->add_flag("--json", options.list.json, "one JSON array for scripts");
  list->footer("Example:\n  poseidon checkpoint list --coordinator 10.0.0.1:4700");

  CLI::App* save = app.add_subcommand("save", "Ask the running job for a checkpoint, wait for it");
  add_coordinator_options(*save, options.save);
  save->add_option("--timeout-s", options.save.timeout_s, "how long to wait until it is committed")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  save->footer(
      "Prints its id. Training does not stop for it.\n\n"
      "Example:\n  poseidon checkpoint save --coordinator 10.0.0.1:4700");

  CLI::App* export_to = app.add_subcommand("export", "Write a checkpoint's model to a file");
  add_coordinator_options(*export_to, options.export_to);
  export_to->add_option("--to", options.export_to.to, "safetensors file to write, on this machine")
      ->required();
  add_checkpoint_id(*export_to, options.export_to.checkpoint);
  export_to->footer(
      "The file is what a run that ended there would have left as model.safetensors. It appears\n"
      "whole or not at all. Training goes on meanwhile; the servers must be reachable from "
      "here.\n\n"
      "Example:\n  poseidon checkpoint export --to model.safetensors --coordinator 10.0.0.1:4700");

  CheckpointRestoreOptions& to = options.restore;
  CLI::App* restore = app.add_subcommand("restore", "Resume a job from a checkpoint");
  add_coordinator_options(*restore, to);
  add_checkpoint_id(*restore, to.checkpoint);
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 20);
  restore
      ->add_option("--workers", to.workers,
                   "use exactly so many (default: as many as trained the checkpoint)")
      ->check(count);
  restore->add_option("--servers", to.servers, "use exactly so many (default: all there are)")
      ->check(count);
  restore->add_option("--run-dir", to.run_dir,
                      "absolute folder on the coordinator's machine (default: the run's own,\n"
                      "whose metrics are cut back to the checkpoint and continued)");
  add_follow_options(*restore, to.follow);
  restore->footer(
      "No job may run. The servers that hold the checkpoint must be here, on any address; the job\n"
      "may use more or fewer. With as many workers as before the model comes out the same.\n\n"
      "Example:\n  poseidon checkpoint restore --coordinator 10.0.0.1:4700 --wait");
  add_checkpoint_remove(*app.add_subcommand("remove", "Remove checkpoints of jobs that are over"),
                        options.remove);
}

/// `poseidon tls`, which has subcommands of its own.
void add_tls(CLI::App& app, TlsInitOptions& init, TlsIssueOptions& issue) {
  app.require_subcommand(1);
  app.footer(
      "'poseidon tls SUBCOMMAND --help' tells more.\n\n"
      "Example:\n  poseidon tls init --to tls");
  const CLI::Range days(1, kMaxCertificateDays);
  CLI::App* init_command =
      app.add_subcommand("init", "Make a private authority and a certificate for each role");
  init_command->add_option("--to", init.to, "output folder")->required();
  init_command->add_option("--days", init.days, "how long certificates are valid")
      ->check(days)
      ->capture_default_str();
  init_command->footer(absl::StrCat(
      "Leaves DIR/ca (keep it away from the cluster: ca.key allows its holder to issue "
      "certificates) and a\n"
      "folder for each role (",
      peer_role_list(),
      "),\neach ready to be copied and given as --tls-dir; that of monitor is for Prometheus. What "
      "is\n"
      "there already stays as it is.\n\nExample:\n  poseidon tls init --to tls"));
  CLI::App* issue_command = app.add_subcommand("issue", "Make one more certificate");
  issue_command->add_option("role", issue.role, absl::StrCat("one of ", peer_role_list()))
      ->required();
  issue_command->add_option("--to", issue.to, "folder of `poseidon tls init`")->required();
  issue_command->add_option("--name", issue.name,
                            "name in the certificate and of its folder (default: the role)");
  issue_command->add_option("--days", issue.days, "how long it is valid")
      ->check(days)
      ->capture_default_str();
  issue_command->footer(
      "Overwrites nothing.\n\nExample:\n  poseidon tls issue worker --name node7 --to tls");
}

int finish(absl::Status status) {
  // Whoever reads a file that is cut off should know.
  if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = absl::UnavailableError("the output could not be written to stdout; is the disk full?");
  }
  if (!status.ok()) {
    std::fprintf(stderr, "poseidon: %s\n", printable_lines(from_absl(status.message())).c_str());
  }
  return exit_code(status);
}

int run(int argc, char** argv) {
  open_standard_streams();
  // What goes wrong is told once, as the command's outcome.
  spdlog::set_level(spdlog::level::off);
  take_grpc_log();
  CLI::App app("Trains deep networks on many machines over ordinary Ethernet.", "poseidon");
  app.set_version_flag("--version", "poseidon " + software_version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 the run failed, 2 the call or the job file is wrong.\n"
      "'poseidon SUBCOMMAND --help' tells more.\n\n"
      "Example:\n  poseidon local deploy/jobs/digits.json --workers 4 --servers 2");

  LocalOptions local;
  SubmitOptions submit;
  StopOptions stop;
  StatusOptions status;
  TopOptions top;
  TraceOptions trace;
  DoctorOptions doctor;
  PlanOptions plan;
  ModelsOptions models;
  DataPackOptions pack;
  DataSourceOptions check;
  TlsInitOptions tls_init;
  TlsIssueOptions tls_issue;
  CLI::App* local_command = app.add_subcommand("local", "Train on this machine: a whole cluster");
  CLI::App* submit_command = app.add_subcommand("submit", "Give a job to a running cluster");
  CLI::App* stop_command = app.add_subcommand("stop", "End the job, after a checkpoint");
  CLI::App* status_command = app.add_subcommand("status", "Show the state of the cluster");
  CLI::App* top_command = app.add_subcommand("top", "The cluster on a terminal, live");
  CLI::App* trace_command =
      app.add_subcommand("trace", "Trace all nodes for some iterations, for Perfetto");
  CLI::App* doctor_command = app.add_subcommand("doctor", "Diagnose what limits the job");
  CLI::App* plan_command =
      app.add_subcommand("plan", "Predict schemes and speed of a job, without a cluster");
  CLI::App* models_command = app.add_subcommand("models", "The networks shipped");
  add_local(*local_command, local);
  add_submit(*submit_command, submit);
  add_stop(*stop_command, stop);
  add_status(*status_command, status);
  add_top(*top_command, top);
  add_trace(*trace_command, trace);
  add_doctor(*doctor_command, doctor);
  add_plan(*plan_command, plan);
  add_models(*models_command, models);
  CLI::App* data_command = app.add_subcommand("data", "Pack and check data sets");
  add_data(*data_command, pack, check);
  CLI::App* tls_command = app.add_subcommand("tls", "Make certificates for a cluster");
  add_tls(*tls_command, tls_init, tls_issue);
  CheckpointOptions checkpoint;
  CLI::App* checkpoint_command =
      app.add_subcommand("checkpoint", "List, save, export, remove and restore checkpoints");
  add_checkpoint(*checkpoint_command, checkpoint);

  // CLI11 alone would answer `poseidon nonsense --help` with the help and success.
  if (const absl::Status known = check_words(app, {argv + 1, argv + argc}); !known.ok()) {
    return finish(known);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitDone : kExitWrongCall;
  }
  if (local_command->parsed()) return finish(run_local(local));
  if (submit_command->parsed()) return finish(run_submit(submit));
  if (stop_command->parsed()) return finish(run_stop(stop));
  if (status_command->parsed()) return finish(run_status(status));
  if (top_command->parsed()) return finish(run_top(top));
  if (trace_command->parsed()) return finish(run_trace(trace));
  if (doctor_command->parsed()) return finish(run_doctor(doctor));
  if (plan_command->parsed()) return finish(run_plan(plan));
  if (data_command->parsed()) {
    const bool packs = data_command->get_subcommand("pack")->parsed();
    return finish(packs ? run_data_pack(pack) : run_data_check(check));
  }
  if (tls_command->parsed()) {
    const bool is_init = tls_command->get_subcommand("init")->parsed();
    return finish(is_init ? run_tls_init(tls_init) : run_tls_issue(tls_issue));
  }
  if (checkpoint_command->parsed()) {
    const auto parsed = [checkpoint_command](const char* name) {
      return checkpoint_command->get_subcommand(name)->parsed();
    };
    if (parsed("list")) return finish(run_checkpoint_list(checkpoint.list));
    if (parsed("save")) return finish(run_checkpoint_save(checkpoint.save));
    if (parsed("export")) return finish(run_checkpoint_export(checkpoint.export_to));
    if (parsed("remove")) return finish(run_checkpoint_remove(checkpoint.remove));
    return finish(run_checkpoint_restore(checkpoint.restore));
  }
  return finish(run_models(models));
}

}  // namespace
}  // namespace poseidon

int main(int argc, char** argv) {
  try {
    return poseidon::run(argc, argv);
  } catch (const std::exception& error) {
    // Nothing of ours throws; what a library throws in spite of all ends here with a word.
    std::fprintf(stderr, "poseidon: unexpected: %s\n", error.what());
    return poseidon::kExitRunFailed;
  }
}
