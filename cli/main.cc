// The operator's command `poseidon`: parses the command line, runs one subcommand and turns its
// status into an exit code.

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
#include "cli/commands/drain_command.h"
#include "cli/commands/stop_command.h"
#include "cli/commands/tls_command.h"
#include "cli/commands/top_command.h"
#include "cli/commands/trace_command.h"
#include "cli/doctor/doctor_command.h"
#include "cli/local/program_run.h"
#include "cli/terminal/outcome.h"
#include "common/base/text.h"
#include "common/daemon/command_line.h"
#include "common/daemon/daemon.h"
#include "common/security/security.h"
#include "common/threads/thread_limit.h"
#include "spdlog/spdlog.h"
#include "worker/data/feed/batches.h"
#include "worker/data/formats/record_format.h"

namespace poseidon {
namespace {

/// Unlike CLI::Range, it refuses NaN.
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
         "seconds to wait for a coordinator that does not answer yet (default 10)")
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
         "with --wait: seconds without an answer of the coordinator before giving up (default "
         "3600)")
      ->check(CLI::Range(std::int64_t{1}, kMaxWaitS));
}

void add_run(CLI::App& app, RunOptions& options) {
  app.add_option("command", options.command,
                 "after --: the program and its arguments; or one job file (JSON)")
      ->required();
  app.add_option("--workers", options.workers, "how many times the program is started")
      ->capture_default_str();
  app.add_option("--servers", options.servers, "parameter server processes")->capture_default_str();
  app.add_option("--run-dir", options.run_dir,
                 "folder for the model, metrics and logs (default runs/<program>-<time>)");
  app.add_flag("--metrics", options.metrics, "serve Prometheus metrics from the cluster");
  app.add_option("--exit-with-parent", options.parent_pid)->group("");  // of its own children
  app.footer(
      "Starts a coordinator, servers, and the program once per worker, with RANK, WORLD_SIZE and\n"
      "POSEIDON_COORDINATOR set. Shows what rank 0 writes; logs/ in the run directory has all.\n\n"
      "A program that a signal kills is started again. One that fails ends the run.\n\n"
      "Example:\n  poseidon run --workers 4 --servers 2 -- python train.py");
}

void add_local(CLI::App& app, LocalOptions& options) {
  app.add_option("job", options.job_path, "job file (JSON)")->required();
  // run_local refuses zero and other text with its own messages.
  app.add_option("--workers", options.workers, "worker processes")->required();
  app.add_option("--servers", options.servers, "parameter server processes")->required();
  app.add_option("--run-dir", options.run_dir,
                 "folder for the model, metrics and logs (default runs/<job name>-<time>)");
  app.add_flag(
      "--fresh", options.fresh,
      "begin anew where --run-dir holds an unfinished run; its files go to earlier/ there");
  app.add_option("--device", options.device,
                 "device of every worker: auto, cpu or cuda:N (workers may share a GPU)")
      ->capture_default_str();
  app.add_flag(
      "--metrics", options.metrics,
      "serve Prometheus metrics from every process; the run directory has the list of targets");
  app.footer(
      "Starts a coordinator, servers and workers as processes of this machine, trains the job,\n"
      "and stops them. Leaves model.safetensors, metrics.jsonl and logs/ in the run directory.\n\n"
      "Ctrl-C or SIGTERM stops the job: it takes a final checkpoint and leaves the model as of "
      "it;\n"
      "a second one ends everything at once. The same command goes on from the newest checkpoint.\n"
      "\n"
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
      "Data paths in the job must be valid on every worker's machine. Relative paths are resolved\n"
      "here, against the job file's folder.\n\n"
      "Example:\n  poseidon submit job.json --coordinator 10.0.0.1:4700 --workers 4 --wait");
}

void add_stop(CLI::App& app, StopOptions& options) {
  add_coordinator_options(app, options);
  app.add_option("--job", options.job,
                 "stop only the job with this id, which `submit` and `status` print (default: the "
                 "current job)");
  app.add_option("--checkpoint-within-s", options.checkpoint_within_s,
                 "seconds that a final checkpoint may take; 0: no final checkpoint")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app.footer(
      "Takes a final checkpoint and ends the job. Its run directory then has the model as of that\n"
      "checkpoint, and the last line says how to go on. The cluster keeps running and accepts the\n"
      "next job. Exit code 1 when the checkpoint failed.\n\n"
      "Example:\n  poseidon stop --coordinator 10.0.0.1:4700");
}

void add_drain(CLI::App& app, DrainOptions& options) {
  add_coordinator_options(app, options);
  app.add_option("node", options.node, "HOST:PORT of the worker or server, as `status` shows it")
      ->required();
  app.add_flag("--undo", options.undo, "let jobs use the node again");
  app.add_option("--timeout-s", options.timeout_s, "seconds to wait until the node is drained")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  app.footer(
      "The job goes on without the node: a worker's share goes to the others, a server's layers\n"
      "move to the other servers. Then the node may be stopped. It stays drained until --undo, or\n"
      "until it or the coordinator is started again. Exit code 1 when the job needs the node.\n\n"
      "Example:\n  poseidon drain 10.0.0.2:4701 --coordinator 10.0.0.1:4700");
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
      "q or Ctrl-C ends it; any other key refreshes at once. Workers are listed slowest first "
      "(the\n"
      "others wait for them), then layers by the time that workers wait for them.\n\n"
      "Example:\n  poseidon top --coordinator 10.0.0.1:4700");
}

void add_trace(CLI::App& app, TraceOptions& options) {
  add_coordinator_options(app, options);
  app.add_option("--to", options.to, "JSON file to write on this machine")->required();
  app.add_option("--iterations", options.iterations, "number of iterations to trace")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--timeout-s", options.timeout_s,
                 "seconds to wait for the trace; then writes a partial one")
      ->check(CLI::Range(1, 600))
      ->capture_default_str();
  app.footer(
      "The file is in Chrome's trace event format; open it at https://ui.perfetto.dev. It has one\n"
      "process per worker and server, with aligned clocks. Training continues meanwhile.\n\n"
      "Example:\n  poseidon trace --coordinator 10.0.0.1:4700 --iterations 10 --to trace.json");
}

void add_doctor(CLI::App& app, DoctorOptions& options) {
  add_coordinator_options(app, options);
  app.add_flag("--json", options.json, "one JSON object for scripts");
  app.add_option("--iterations", options.iterations,
                 "number of iterations to trace (default: those of a few seconds)")
      ->check(CLI::Range(2, 1000));
  app.footer(
      "Reads a short trace, the status and the counters that nodes report, and prints what limits\n"
      "the job: the node, link, server, disk, layer or machine, its cost, and the remedy.\n\n"
      "Example:\n  poseidon doctor --coordinator 10.0.0.1:4700");
}

void add_plan(CLI::App& app, PlanOptions& options) {
  app.add_option("job", options.job_path, "job file (JSON); its data need not be on this machine")
      ->required();
  app.add_option("--workers", options.workers, "number of workers")->required();
  app.add_option("--servers", options.servers, "number of parameter servers")->required();
  app.add_option(
      "--bandwidth", options.bandwidth,
      "network bandwidth of each machine, each way: 10gbit, 200mbit, 1.25gbyte (default 10gbit)");
  app.add_option("--latency", options.latency,
                 "network latency, one way: 50us, 1ms (default 50us)");
  app.add_option("--device-flops", options.device_flops,
                 "speed of matrix products on one worker: 6e12, 6T, 312TFLOPS (default: from "
                 "--images-per-s, else 6T)");
  app.add_option(
      "--images-per-s", options.images_per_s,
      "training speed of one worker alone (default: from the network and --device-flops)");
  app.add_option("--workers-per-machine", options.workers_per_machine,
                 "number of workers that share a machine and its link (default 1)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--separate-servers", options.separate_servers,
               "run servers on their own machines (default: on the workers' machines)");
  app.add_flag("--json", options.json, "JSON for scripts and for a job's sync.plan");
  app.footer(
      "Prints the bytes and the cost of each scheme per layer, the chosen scheme with its reason,\n"
      "and the predicted iteration time, also for 1 to 64 workers. Needs no cluster. Without any "
      "of\n"
      "the four speeds it chooses the schemes that move the fewest bytes.\n\n"
      "Example:\n  poseidon plan job.json --workers 16 --servers 16 --bandwidth 10gbit "
      "--images-per-s 35");
}

void add_models(CLI::App& app, ModelsOptions& options) {
  app.add_option("name", options.name,
                 "name of a shipped network, or path of a network file (default: list all)");
  app.add_flag("--json", options.json, "JSON for scripts");
  app.footer("Examples:\n  poseidon models\n  poseidon models lenet --json");
}

void add_source(CLI::App& app, DataSourceOptions& options) {
  app.add_option("source", options.sources,
                 "folder (image_folder, records) or files (cifar10, cifar100; idx: images, labels)")
      ->required();
  app.add_option("--format", options.format,
                 "idx, cifar10, cifar100, image_folder or records (default: detected in a folder)");
  app.add_option("--labels", options.labels, "cifar100: fine (default) or coarse");
  app.add_option("--threads", options.threads, "decoding threads; 0: all cores")
      ->check(CLI::Range(0, kMaxDataThreads))
      ->capture_default_str();
}

/// `poseidon data`, which has subcommands of its own.
void add_data(CLI::App& app, DataPackOptions& pack, DataSourceOptions& check) {
  app.require_subcommand(1);
  app.footer(
      "'poseidon data SUBCOMMAND --help' describes a subcommand.\n\n"
      "Example:\n  poseidon data check imagenet/train");
  CLI::App* pack_command = app.add_subcommand("pack", "Pack samples into record files");
  add_source(*pack_command, pack.source);
  pack_command->add_option("--to", pack.to, "folder to create; it must not exist")->required();
  auto* shards = pack_command->add_option("--shards", pack.shards, "number of files to write");
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
      "Reads and decodes every sample, names and skips those that cannot be read, and writes the\n"
      "others unchanged. The folder appears when all of it is on disk.\n\n"
      "Examples:\n  poseidon data pack imagenet/train --to imagenet-train --shard-bytes 1GiB\n"
      "  poseidon data pack train-images.gz train-labels.gz --format idx --to digits --shards 1");
  CLI::App* check_command =
      app.add_subcommand("check", "Read and decode every sample; name those that cannot be read");
  add_source(*check_command, check);
  check_command->footer(
      "Exit code 1 when a sample cannot be read.\n\nExample:\n  poseidon data check "
      "imagenet/train");
}

struct CheckpointOptions {
  CheckpointListOptions list;
  CheckpointSaveOptions save;
  CheckpointExportOptions export_to;
  CheckpointRestoreOptions restore;
  CheckpointRemoveOptions remove;
};

void add_checkpoint_id(CLI::App& app, std::string& checkpoint) {
  app.add_option("--checkpoint", checkpoint,
                 "id of the checkpoint, as `list` prints it (default: the newest)");
}

void add_checkpoint_remove(CLI::App& app, CheckpointRemoveOptions& options) {
  add_coordinator_options(app, options);
  CLI::Option* ids = app.add_option("--checkpoint", options.checkpoints,
                                    "ids of checkpoints, as `list` prints them")
                         ->expected(1, -1);
  CLI::Option* job = app.add_option("--job", options.job,
                                    "all checkpoints of the job with this id, as `list` prints it");
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
      "Does not remove checkpoints of the job in progress, which keeps checkpoint.keep of them.\n"
      "Prints the removed ids; servers free their disks in the background.\n\n"
      "Example:\n"
      "  poseidon checkpoint remove --job digits-3 --keep 1 --coordinator 10.0.0.1:4700");
}

/// `poseidon checkpoint`, which has subcommands of its own.
void add_checkpoint(CLI::App& app, CheckpointOptions& options) {
  app.require_subcommand(1);
  app.footer(
      "'poseidon checkpoint SUBCOMMAND --help' describes a subcommand.\n\n"
      "Example:\n  poseidon checkpoint list --coordinator 10.0.0.1:4700");
  CLI::App* list = app.add_subcommand("list", "List the checkpoints of all jobs, oldest first");
  add_coordinator_options(*list, options.list);
  list->add_flag("--json", options.list.json, "one JSON array for scripts");
  list->footer("Example:\n  poseidon checkpoint list --coordinator 10.0.0.1:4700");

  CLI::App* save =
      app.add_subcommand("save", "Take a checkpoint of the running job and wait for it");
  add_coordinator_options(*save, options.save);
  save->add_option("--timeout-s", options.save.timeout_s, "seconds to wait until it is committed")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  save->footer(
      "Prints the checkpoint's id. Training continues meanwhile.\n\n"
      "Example:\n  poseidon checkpoint save --coordinator 10.0.0.1:4700");

  CLI::App* export_to = app.add_subcommand("export", "Write a checkpoint's model to a file");
  add_coordinator_options(*export_to, options.export_to);
  export_to->add_option("--to", options.export_to.to, "safetensors file to write on this machine")
      ->required();
  add_checkpoint_id(*export_to, options.export_to.checkpoint);
  export_to->footer(
      "Writes the model.safetensors of a run that ends at the checkpoint. The file appears only\n"
      "when it is complete. Training continues meanwhile. This machine must reach the servers.\n\n"
      "Example:\n  poseidon checkpoint export --to model.safetensors --coordinator 10.0.0.1:4700");

  CheckpointRestoreOptions& to = options.restore;
  CLI::App* restore = app.add_subcommand("restore", "Resume a job from a checkpoint");
  add_coordinator_options(*restore, to);
  add_checkpoint_id(*restore, to.checkpoint);
  const CLI::Range count(std::int64_t{1}, std::int64_t{1} << 20);
  restore
      ->add_option("--workers", to.workers,
                   "use exactly N workers (default: as many as trained the checkpoint)")
      ->check(count);
  restore
      ->add_option("--servers", to.servers,
                   "use exactly N servers (default: all that are connected)")
      ->check(count);
  restore->add_option("--job", to.job,
                      "job file with other iterations, rate, schedule, batch, data, tests or\n"
                      "checkpoints; what may not change is refused by name (default: the job as\n"
                      "it was)");
  restore->add_option("--run-dir", to.run_dir,
                      "absolute folder on the coordinator's machine (default: the run's folder,\n"
                      "where metrics after the checkpoint are removed)");
  add_follow_options(*restore, to.follow);
  restore->footer(
      "No other job may be in progress. The servers that hold the checkpoint must be connected, "
      "at\n"
      "any address; the job may use more or fewer servers. With the same number of workers the\n"
      "model is the same as without the interruption.\n\n"
      "Example:\n  poseidon checkpoint restore --coordinator 10.0.0.1:4700 --wait");
  add_checkpoint_remove(*app.add_subcommand("remove", "Remove checkpoints of ended jobs"),
                        options.remove);
}

/// `poseidon tls`, which has subcommands of its own.
void add_tls(CLI::App& app, TlsInitOptions& init, TlsIssueOptions& issue) {
  app.require_subcommand(1);
  app.footer(
      "'poseidon tls SUBCOMMAND --help' describes a subcommand.\n\n"
      "Example:\n  poseidon tls init --to tls");
  const CLI::Range days(1, kMaxCertificateDays);
  CLI::App* init_command =
      app.add_subcommand("init", "Make a private authority and a certificate for each role");
  init_command->add_option("--to", init.to, "output folder")->required();
  init_command->add_option("--days", init.days, "days that the certificates are valid")
      ->check(days)
      ->capture_default_str();
  init_command->footer(absl::StrCat(
      "Writes a folder for each role (", peer_role_list(),
      "), ready to be\ncopied to its machine and given as --tls-dir (monitor: for Prometheus), and "
      "the authority's\nfolder, ca. Keep ca away from the cluster: its ca.key can issue "
      "certificates. Existing files\nare not changed.\n\nExample:\n  poseidon tls init --to tls"));
  CLI::App* issue_command = app.add_subcommand("issue", "Issue one more certificate");
  issue_command->add_option("role", issue.role, absl::StrCat("one of ", peer_role_list()))
      ->required();
  issue_command->add_option("--to", issue.to, "folder of `poseidon tls init`")->required();
  issue_command->add_option("--name", issue.name,
                            "name of the certificate and of its folder (default: the role)");
  issue_command->add_option("--days", issue.days, "days that the certificate is valid")
      ->check(days)
      ->capture_default_str();
  issue_command->footer(
      "Existing files are not changed.\n\nExample:\n  poseidon tls issue worker --name node7 --to "
      "tls");
}

int finish(absl::Status status) {
  // A reader of truncated output must learn of it.
  if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = absl::UnavailableError("the output could not be written to stdout; is the disk full?");
  }
  if (!status.ok() && !status.message().empty()) {
    std::fprintf(stderr, "poseidon: %s\n", printable_lines(from_absl(status.message())).c_str());
  }
  return own_exit_code(status).value_or(exit_code(status));
}

int run(int argc, char** argv) {
  open_standard_streams();
  // Errors are printed once, as the command's outcome.
  spdlog::set_level(spdlog::level::off);
  take_grpc_log();
  CLI::App app("Trains deep networks on many machines over ordinary Ethernet.", "poseidon");
  app.set_version_flag("--version", "poseidon " + software_version());
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 the run failed, 2 the command line or the job file is wrong, 3 "
      "somebody\nelse stopped the job, 130 and 143 stopped by Ctrl-C (SIGINT) and SIGTERM.\n"
      "'poseidon SUBCOMMAND --help' describes a subcommand.\n\n"
      "Example:\n  poseidon local deploy/jobs/digits.json --workers 4 --servers 2");

  LocalOptions local;
  SubmitOptions submit;
  StopOptions stop;
  DrainOptions drain;
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
  CLI::App* local_command =
      app.add_subcommand("local", "Train a job on this machine, with a cluster of its own");
  CLI::App* submit_command = app.add_subcommand("submit", "Submit a job to a running cluster");
  CLI::App* stop_command =
      app.add_subcommand("stop", "End the running job after a final checkpoint");
  CLI::App* drain_command =
      app.add_subcommand("drain", "Take a node out of service; the job goes on without it");
  CLI::App* status_command = app.add_subcommand("status", "Show the state of the cluster");
  CLI::App* top_command = app.add_subcommand("top", "Show the state of the cluster live");
  CLI::App* trace_command =
      app.add_subcommand("trace", "Trace some iterations on all nodes, for Perfetto");
  CLI::App* doctor_command = app.add_subcommand("doctor", "Diagnose what limits the job");
  CLI::App* plan_command =
      app.add_subcommand("plan", "Predict the schemes and the speed of a job without a cluster");
  CLI::App* models_command = app.add_subcommand("models", "List the shipped networks, or show one");
  RunOptions run;
  CLI::App* run_command = app.add_subcommand(
      "run", "Train with a program of your own on this machine, with a cluster of its own");
  add_run(*run_command, run);
  add_local(*local_command, local);
  add_submit(*submit_command, submit);
  add_stop(*stop_command, stop);
  add_drain(*drain_command, drain);
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
  if (run_command->parsed()) return finish(run_program(run));
  if (local_command->parsed()) return finish(run_local(local));
  if (submit_command->parsed()) return finish(run_submit(submit));
  if (stop_command->parsed()) return finish(run_stop(stop));
  if (drain_command->parsed()) return finish(run_drain(drain));
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
  poseidon::end_at_uncaught_exceptions("poseidon");
  try {
    return poseidon::run(argc, argv);
  } catch (const std::exception& error) {
    // Our code does not throw; an exception of a library ends here with a message.
    std::fprintf(stderr, "poseidon: unexpected: %s\n", error.what());
    return poseidon::kExitRunFailed;
  }
}
