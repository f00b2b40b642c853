// poseidon-worker: runs forward and backward and synchronises every layer, with the servers or with
// the other workers.

#include <string>

#include "worker/engine/plugin/open_engine.h"
#include "worker/worker_main.h"

int main(int argc, char** argv) {
  CLI::App app("Poseidon's worker: computes gradients and trains with the rest of the cluster.",
               "poseidon-worker");
  std::string device = "auto";
  app.add_option("--device", device, "auto, cpu or cuda:N")->capture_default_str();
  return poseidon::worker_main(argc, argv, app,
                               [&device] { return poseidon::open_engine(device); });
}
