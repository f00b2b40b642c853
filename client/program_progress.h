#pragma once

// Decides what a program's calls mean for the job's epochs: what the epoch's thread does next, what
// a call returns, and after an epoch has ended early, whether the program notices. Pure: no
// threads, no sockets, no memory of tensors.
//
// Called by: client/program_link.h, which lends it to the program's thread and to the job's thread
// under a mutex. Calls: nothing.
//
// The program is at iteration i when it has ended i steps. The epoch works at iteration s, which is
// i, or i - 1 while gradients of the step before are still to be given to synchronisation.
//
// A new epoch begins at iteration f and overwrites the parameters in memory with those of f:
//  - f == i: they are the same bytes. The gradients of i that the program has reported are still
//    in memory, and are given to synchronisation again. The program notices nothing.
//  - f == i - 1, and the program has not been told of any parameters of i: it reads none now. The
//    gradients and the loss of i - 1 are still in memory, because a program writes gradients of i
//    only once it has been told of all parameters of i. They are given again, the step is ended
//    again, and the program notices nothing.
//  - otherwise, or when the worker's rank or the number of workers has changed: the program goes
//    on from f, and its next call says so (kRewound), once the parameters of f are in memory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace poseidon {

/// Where an epoch begins, and who this worker is in it.
struct EpochPlace {
  Iteration first_iteration = 0;
  std::uint32_t rank = 0;
  std::uint32_t workers = 0;
};

/// One caller at a time.
class ProgramProgress {
 public:
  /// `layers`: their names, in forward order; at least one. `gives_rates`: the program says the
  /// rates of each step.
  explicit ProgramProgress(std::vector<std::string> layers, bool gives_rates = false);

  enum class Verdict {
    kOk,
    kWait,     ///< ask again after the next change
    kInvalid,  ///< the call is wrong and has changed nothing
    kRewound,
    kEnded,  ///< the job is over, or this worker's part in it
  };
  struct Reply {
    Verdict verdict = Verdict::kOk;
    std::string message;  ///< of kInvalid
  };

  // ---- the program's calls ----

  /// kOk: all parameters of iteration() are in memory.
  Reply join();
  Reply gradient(std::size_t layer);
  /// kOk: the norm of the mean gradient of iteration() is known.
  Reply norm();
  /// Those of the step that ends iteration(): before its first gradient, or behind its last one.
  Reply rates();
  /// Which of the two it was, for the rates of iteration().
  bool rates_are_ahead() const { return is_ahead_; }
  Reply step(double loss);
  Reply wait(std::size_t layer);
  /// kOk: the job is done.
  Reply finish();

  /// How many steps the program has ended.
  Iteration iteration() const { return iteration_; }
  /// Of the newest epoch.
  const EpochPlace& place() const { return place_; }

  // ---- the epochs ----

  /// Before the epoch overwrites parameters: from now on, calls wait for what it overwrites.
  void prepare(const EpochPlace& place);
  /// All parameters of the epoch's first iteration are in memory.
  void begin();

  struct Action {
    enum class Kind {
      kNothing,   ///< wait for a call
      kGradient,  ///< give the gradient of `layer` of `iteration` to synchronisation
      kNorm,      ///< wait for the norm of the gradient of `iteration`, then norm_known()
      kRates,     ///< give the rates of `iteration` to synchronisation
      kStep,      ///< end `iteration`, whose loss is `loss`
      kAwait,     ///< wait for the parameters of `layer` with `iteration` steps, then landed()
      kFinish,    ///< `iteration` steps are all: get the final parameters, then trained()
    };
    Kind kind = Kind::kNothing;
    std::size_t layer = 0;
    Iteration iteration = 0;
    double loss = 0.0;
  };
  /// What the epoch's thread does next. It does so before it asks again.
  Action next();
  void landed(std::size_t layer);
  void norm_known(Iteration iteration);
  /// It has ended early; another one may begin.
  void over();
  /// `done`: the job has succeeded.
  void end(bool done);

  bool is_running() const { return phase_ == Phase::kRunning; }
  bool has_joined() const { return has_joined_; }

 private:
  enum class Phase { kNoEpoch, kPrepared, kRunning };

  /// What all calls after join have in common; kOk: go on.
  Reply enter(const char* call);
  /// Of calls that come between the last gradient and the step.
  Reply enter_behind_gradients(const char* call);
  bool is_silent(const EpochPlace& place) const;
  void rewind(Iteration first);
  bool all(const std::vector<bool>& flags) const;

  std::vector<std::string> names_;
  bool gives_rates_;

  // The program's side.
  bool has_joined_ = false;
  Iteration iteration_ = 0;           ///< i
  std::vector<std::size_t> reports_;  ///< layers of i, in the order of their reports
  std::vector<bool> reported_;        ///< the same, by layer
  std::vector<std::size_t> last_;     ///< all layers of i - 1, in that order
  double last_loss_ = 0.0;            ///< of i - 1
  bool has_last_ = false;             ///< i - 1 can be given again
  bool has_rates_ = false;            ///< of i; those of i - 1 are always known
  bool is_ahead_ = false;             ///< they came before the gradients of i ...
  bool was_ahead_ = false;            ///< ... and of i - 1
  bool awaits_norm_ = false;          ///< of i
  Iteration norm_of_ = -1;            ///< the newest that is known
  std::vector<bool> told_;            ///< by layer: a call has said that i's parameters are there
  bool is_finishing_ = false;         ///< no further step is to come
  bool is_rewound_ = false;           ///< and no call has said so yet
  bool is_ended_ = false, is_done_ = false;

  // The epoch's side.
  Phase phase_ = Phase::kNoEpoch;
  EpochPlace place_;
  Iteration working_ = 0;         ///< s
  std::size_t given_ = 0;         ///< reports of s that synchronisation has
  bool rates_given_ = false;      ///< those of s
  std::vector<bool> landed_;      ///< by layer: parameters of i are in memory
  bool is_finish_given_ = false;  ///< in this epoch
};

}  // namespace poseidon
