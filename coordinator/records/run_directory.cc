#include "coordinator/records/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/files/file_io.h"
#include "coordinator/records/earlier_run.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace poseidon {
namespace {

namespace fs = std::filesystem;

/// A pipe without a reader is an error; it is not waited for. A link is an error, too: whoever may
/// make one in a run's folder must not choose which file the coordinator overwrites.
constexpr int kMetricsFlags = O_WRONLY | O_CLOEXEC | O_APPEND | O_NONBLOCK | O_NOFOLLOW;
/// Between two attempts to write to a disk that does not take it.
constexpr Milliseconds kRetryPause{500};
/// Attempts once the run has ended.
constexpr int kLastTries = 4;

/// Lines per write: a disk that refuses them is not tried with all waiting lines.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 20;

/// Of a line of metrics.jsonl, generously.
constexpr std::size_t kMaxMetricsLineBytes = 4096;

absl::Status link_error(const fs::path& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path.string(),
                   " is a symbolic link, and a run writes files of its own: remove the link, or "
                   "choose another --run-dir"));
}

absl::Status errno_status(const char* what, const fs::path& path) {
  if (errno == ELOOP) return link_error(path);
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path.string()));
}

/// Keeps the lines that are about to be cut off after `bytes` of the metrics in a file beside them,
/// if some are intact: a disk has damaged the first of them, and the user may want the others.
absl::Status keep_cut_lines(const fs::path& metrics, std::ifstream& in, std::uint64_t bytes) {
  in.clear();
  in.seekg(static_cast<std::streamoff>(bytes));
  std::string piece;
  if (!std::getline(in, piece) || in.eof()) return absl::OkStatus();
  const fs::path beside = metrics.parent_path() / kCutMetricsFile;
  AtomicFile file(beside, AtomicFile::Link::kReplace);
  POSEIDON_RETURN_IF_ERROR(file.open());
  in.seekg(static_cast<std::streamoff>(bytes));
  piece.resize(kMostAtOnce);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0) {
    POSEIDON_RETURN_IF_ERROR(
        file.append(std::string_view(piece).substr(0, static_cast<std::size_t>(in.gcount()))));
  }
  if (in.bad()) return errno_status("read", metrics);
  POSEIDON_RETURN_IF_ERROR(file.commit());
  spdlog::error(
      "{}: the bytes after byte {} are no lines of this run; they were cut off and are kept in {}",
      metrics.string(), bytes, beside.string());
  return absl::OkStatus();
}

/// Where the last line of an iteration before this one ends; 0: there is none. The first line may
/// be torn.
std::size_t end_of_iterations_before(std::string_view metrics, Iteration iteration) {
  std::size_t found = 0, begin = 0;
  for (std::size_t end = metrics.find('\n'); end != std::string_view::npos;
       end = metrics.find('\n', begin)) {
    const auto line = parse_metrics_line(metrics.substr(begin, end - begin));
    begin = end + 1;
    if (line && line->loss && line->iteration < iteration) found = begin;
  }
  return found;
}

/// The first line of a run's metrics is an iteration or a test. Other tools write files of that
/// name, too.
bool is_foreign_metrics(const fs::path& metrics) {
  const absl::StatusOr<Descriptor> file = open_file(metrics);
  if (!file.ok()) return false;  // the later write reports the error
  std::string begin(kMaxMetricsLineBytes, '\0');
  const ssize_t got = ::pread(file->get(), begin.data(), begin.size(), 0);
  begin.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return !begin.empty() && !parse_metrics_line(begin.substr(0, begin.find('\n')));
}

}  // namespace

absl::Status check_nothing_foreign(const fs::path& run_directory) {
  std::error_code ignored;
  const auto is_there = [&](const char* name) { return fs::exists(run_directory / name, ignored); };
  if (is_there(kIncomingFolder)) return absl::OkStatus();  // a run is half aside by now
  const fs::path metrics = run_directory / kMetricsFile;
  if (is_there(kMetricsFile)) {
    if (!is_foreign_metrics(metrics)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(metrics.string(),
                     " belongs to no run (it does not begin with an iteration), and a run would "
                     "overwrite it; move it, or choose another --run-dir"));
  }
  for (const char* name : kCompanions) {
    if (!is_there(name)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        (run_directory / name).string(), " belongs to no run (there is no ", kMetricsFile,
        " beside it), and a run would overwrite it; move it, or choose another --run-dir"));
  }
  return absl::OkStatus();
}

// ---- ModelFile ----

ModelFile::ModelFile(const fs::path& path, std::uint64_t total_bytes)
    : file_(path, AtomicFile::Link::kReplace), total_bytes_(total_bytes) {}

absl::StatusOr<std::unique_ptr<ModelFile>> ModelFile::open(const fs::path& directory,
                                                           std::uint64_t total_bytes) {
  std::unique_ptr<ModelFile> file(new ModelFile(directory / kModelFile, total_bytes));
  if (absl::Status opened = file->file_.open(); !opened.ok()) {
    // For example a folder of that name: a user can remove it, and the model is worth the wait.
    return absl::IsInvalidArgument(opened) ? absl::FailedPreconditionError(opened.message())
                                           : opened;
  }
  return file;
}

absl::Status ModelFile::append(std::uint64_t offset, std::string_view data) {
  if (offset != written_bytes_ || data.size() > total_bytes_ - written_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("a model part of ", data.size(), " bytes at ",
                                                   offset, "; ", written_bytes_, " of ",
                                                   total_bytes_, " bytes have arrived"));
  }
  POSEIDON_RETURN_IF_ERROR(file_.append(data));
  written_bytes_ += data.size();
  hash_.add(data);
  return absl::OkStatus();
}

absl::Status ModelFile::check_whole() const {
  if (written_bytes_ == total_bytes_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model ended after ", written_bytes_, " of ", total_bytes_, " bytes"));
}

absl::Status ModelFile::check(
    const std::string& sha256,
    const std::function<absl::Status(const SafetensorsHeader&)>& check_header) const {
  POSEIDON_RETURN_IF_ERROR(check_whole());
  if (hash_.digest() != sha256) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the model's ", total_bytes_, " bytes do not have the SHA-256 that worker 0 announced"));
  }
  constexpr const char* kModel = "the model";
  POSEIDON_ASSIGN_OR_RETURN(const Descriptor file, open_file(file_.temporary()));
  std::string bytes(std::min<std::uint64_t>(total_bytes_, kSafetensorsLengthBytes), '\0');
  const auto read_all = [&] {
    return read_exactly_at(file.get(), file_.temporary(), 0,
                           reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size());
  };
  POSEIDON_RETURN_IF_ERROR(read_all());
  POSEIDON_ASSIGN_OR_RETURN(const std::uint64_t header_bytes,
                            safetensors_header_bytes(bytes, total_bytes_, kModel));
  bytes.resize(header_bytes);
  POSEIDON_RETURN_IF_ERROR(read_all());
  POSEIDON_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                            parse_safetensors_header(bytes, total_bytes_, kModel));
  return check_header == nullptr ? absl::OkStatus() : check_header(header);
}

absl::Status ModelFile::commit() {
  POSEIDON_RETURN_IF_ERROR(check_whole());
  return file_.commit();
}

// ---- RunDirectory ----

namespace {

/// The model of a run that was stopped is that of a checkpoint: a run that goes on replaces it. The
/// model goes first, since the file beside it tells what it is.
absl::Status remove_stopped_model(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path / kStoppedFile, ignored)) return absl::OkStatus();
  POSEIDON_RETURN_IF_ERROR(remove_durably(path / kModelFile));
  return remove_durably(path / kStoppedFile);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::open(const fs::path& path, Begin begin,
                                                                 Events events) {
  POSEIDON_RETURN_IF_ERROR(create_folder(path));
  const fs::path metrics = path / kMetricsFile;
  std::error_code ignored;
  if (fs::is_symlink(metrics, ignored)) return link_error(metrics);
  const bool goes_on = begin == Begin::kGoOn;
  const bool replaced = !goes_on && fs::exists(metrics, ignored);
  // A model may be weeks of work, and the run directory a slip of the hand: it goes aside, and only
  // the next finished one takes its place there.
  // What is foreign stays where it is, also beside a model.
  if (goes_on) POSEIDON_RETURN_IF_ERROR(remove_stopped_model(path));
  if (!goes_on) POSEIDON_RETURN_IF_ERROR(check_nothing_foreign(path));
  POSEIDON_RETURN_IF_ERROR(
      set_finished_run_aside(path, goes_on ? MetricsAside::kCopy : MetricsAside::kMove));
  Descriptor fd(::open(metrics.c_str(), kMetricsFlags | O_CREAT | (goes_on ? 0 : O_TRUNC), 0644));
  if (!fd.is_open()) return folder_error(metrics, "cannot create", errno);
  // What is left of an earlier run must not pass for this one's.
  for (const char* name : kCompanions) fs::remove(path / name, ignored);
  fs::remove(path / kModelFile, ignored);  // a link to nothing; any other is aside by now
  return std::unique_ptr<RunDirectory>(
      new RunDirectory(path, std::move(events), std::move(fd), replaced));
}

bool RunDirectory::moves_as_run_begins(const fs::path& path, const fs::path& file) {
  std::error_code ignored;
  const fs::path folder = fs::weakly_canonical(path, ignored);
  const fs::path canonical = fs::weakly_canonical(file, ignored);
  return canonical == folder / kModelFile || canonical == folder / kEarlierFolder / kModelFile ||
         canonical == folder / kIncomingFolder / kModelFile;
}

MetricsProgress read_metrics_progress(std::istream& in) {
  MetricsProgress progress;
  std::string line;
  while (std::getline(in, line) && !in.eof()) {  // at the end of the file: no line end, torn
    const std::optional<MetricsLine> metrics = parse_metrics_line(line);
    if (!metrics) break;
    if (metrics->loss) {
      if (metrics->iteration < progress.next_iteration) break;
      progress.next_iteration = metrics->iteration + 1;
      progress.loss = metrics->loss;
    } else {
      if (metrics->iteration < progress.tested_iteration.value_or(0)) break;
      progress.tested_iteration = metrics->iteration;
      progress.test_loss = metrics->test_loss;
      progress.test_accuracy = metrics->test_accuracy;
    }
    progress.curve.add(*metrics);
    progress.bytes += line.size() + 1;
  }
  return progress;
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::reopen(const fs::path& path,
                                                                   Events events,
                                                                   MetricsProgress& progress) {
  POSEIDON_RETURN_IF_ERROR(remove_stopped_model(path));
  const fs::path metrics = path / kMetricsFile;
  Descriptor fd(::open(metrics.c_str(), kMetricsFlags));
  if (!fd.is_open()) return errno_status("open", metrics);
  std::ifstream in(metrics, std::ios::binary);
  if (!in) return errno_status("read", metrics);
  progress = read_metrics_progress(in);
  if (in.bad()) return errno_status("read", metrics);
  POSEIDON_RETURN_IF_ERROR(keep_cut_lines(metrics, in, progress.bytes));
  if (::ftruncate(fd.get(), static_cast<off_t>(progress.bytes)) != 0) {
    return errno_status("cut the last line of", metrics);
  }
  return std::unique_ptr<RunDirectory>(
      new RunDirectory(path, std::move(events), std::move(fd), /*replaced=*/false));
}

bool RunDirectory::has_model() const {
  std::error_code ignored;
  return fs::exists(path_ / kModelFile, ignored);
}

RunDirectory::RunDirectory(fs::path path, Events events, Descriptor metrics_fd, bool replaced)
    : path_(std::move(path)),
      events_(std::move(events)),
      metrics_fd_(std::move(metrics_fd)),
      replaced_(replaced) {
  for (const char* name : {kModelFile, kMetricsFile}) remove_leftovers(path_ / name);
  for (const char* name : kCompanions) remove_leftovers(path_ / name);
  writer_ = std::thread([this] { write_loop(); });
}

RunDirectory::~RunDirectory() {
  close(RunEnd::kOver);
  writer_.join();
}

void RunDirectory::append_line(std::string line, std::optional<SnapshotId> reaches) {
  line += '\n';
  enqueue(Line{.text = std::move(line), .reaches = reaches});
}

void RunDirectory::write_file(std::string name, std::string contents) {
  enqueue(File{.name = std::move(name), .contents = std::move(contents)});
}

void RunDirectory::roll_back(Iteration iteration) { enqueue(RollBack{iteration}); }

void RunDirectory::sync() { enqueue(Sync{}); }

void RunDirectory::enqueue(Item item) {
  const MutexLock lock(mutex_);
  if (closing_) return;
  if (queued_bytes_ + bytes_of(item) > kMaxQueuedBytes) {
    overflow_ = true;
  } else {
    queued_bytes_ += bytes_of(item);
    const File* file = std::get_if<File>(&item);
    has_record_ = has_record_ || (file != nullptr && file->is_elsewhere());
    queue_.push_back(std::move(item));
  }
  changed_.notify_all();
}

void RunDirectory::close(RunEnd end) {
  const MutexLock lock(mutex_);
  if (!closing_) closing_ = end;
  changed_.notify_all();
}

std::size_t RunDirectory::bytes_of(const Item& item) {
  std::size_t bytes = sizeof(item);
  if (const Line* line = std::get_if<Line>(&item)) bytes += line->text.size();
  if (const File* file = std::get_if<File>(&item)) {
    bytes += file->name.size() + file->contents.size();
  }
  return bytes;
}

std::size_t RunDirectory::bytes_of(const std::deque<Item>& items) {
  std::size_t bytes = 0;
  for (const Item& item : items) bytes += bytes_of(item);
  return bytes;
}

void RunDirectory::write_loop() {
  bool failing = false, own_failing = false;
  int last_tries = kLastTries;
  while (true) {
    std::deque<Item> items;
    bool overflow = false;
    std::optional<RunEnd> closing;
    {
      MutexLock lock(mutex_);
      if (failing) {
        changed_.wait_for(mutex_, kRetryPause, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return closing_.has_value() || has_record_;
        });
      } else {
        // Without a deadline on purpose: this thread's whole life is to wait for work or close().
        changed_.wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return closing_.has_value() || overflow_ || !queue_.empty();
        });
      }
      items.swap(queue_);
      has_record_ = false;
      overflow = std::exchange(overflow_, false);
      closing = closing_;
    }
    const std::size_t taken = bytes_of(items);
    const Written result = write_items(items);
    if (!result.own.ok() && !own_failing) events_.on_trouble(result.own);
    own_failing = !result.own.ok();
    failing = !result.all();
    if (failing) write_elsewhere(items, closing == RunEnd::kOver);
    if (overflow && closing != RunEnd::kLeft) {
      events_.on_error(absl::ResourceExhaustedError(
          absl::StrCat(failing ? result.first().message()
                               : absl::StrCat(path_.string(), ": the disk is too slow"),
                       "; ", kMaxQueuedBytes >> 20, " MiB of lines wait for it")));
    }
    const std::size_t written = taken - bytes_of(items);
    {
      const MutexLock lock(mutex_);
      queued_bytes_ -= written;
      if (failing) {
        std::move(queue_.begin(), queue_.end(), std::back_inserter(items));
        queue_.swap(items);
        closing = closing_;
      }
    }
    if (closing && failing && --last_tries == 0 && closing == RunEnd::kOver)
      events_.on_error(result.first());
    if (closing && (!failing || last_tries == 0)) break;
    if (closing && failing) std::this_thread::sleep_for(kRetryPause);
  }
  // Once the run is reported as closed, its job may be forgotten, and no worker sends the lines
  // again.
  if (::fdatasync(metrics_fd_.get()) != 0 && errno != EINVAL) {
    spdlog::error("{}", std::string(errno_status("write to disk", path_ / kMetricsFile).message()));
  }
  events_.on_closed();
}

/// Removes written lines from `items`. What is to be written elsewhere, and finds no room there,
/// holds up nothing but metrics that go back; unless it is the first since they did, because the
/// next process must not take the later lines for those of the abandoned course.
RunDirectory::Written RunDirectory::write_items(std::deque<Item>& items) {
  Written result;
  std::deque<Item> waiting;
  while (!items.empty()) {
    if (!waiting.empty() && std::holds_alternative<RollBack>(items.front())) break;
    const File* next = std::get_if<File>(&items.front());
    const std::string name = next == nullptr ? "" : next->name;
    const absl::Status status = write_next(items);
    if (status.ok()) {
      std::erase_if(waiting, [&](const Item& older) { return std::get<File>(older).name == name; });
      continue;
    }
    const File* file = std::get_if<File>(&items.front());
    const bool is_elsewhere = file != nullptr && file->is_elsewhere();
    (is_elsewhere ? result.elsewhere : result.own).Update(status);
    if (!is_elsewhere || went_back_) break;
    waiting.push_back(std::move(items.front()));
    items.pop_front();
  }
  std::move(waiting.rbegin(), waiting.rend(), std::front_inserter(items));
  return result;
}

/// The first of them, or the lines with which they begin.
absl::Status RunDirectory::write_next(std::deque<Item>& items) {
  const Item& next = items.front();
  if (std::holds_alternative<Line>(next)) return write_lines(items);
  if (const auto* back = std::get_if<RollBack>(&next)) {
    POSEIDON_RETURN_IF_ERROR(roll_back_now(back->iteration));
    went_back_ = true;
  } else if (const auto* file = std::get_if<File>(&next)) {
    POSEIDON_RETURN_IF_ERROR(write_named(*file));
  }
  const bool is_sync = std::holds_alternative<Sync>(next);
  items.pop_front();
  // Tried once: an error that persists shows at the next line.
  if (is_sync && ::fdatasync(metrics_fd_.get()) != 0 && errno != EINVAL) {
    return errno_status("write to disk", path_ / kMetricsFile);
  }
  return absl::OkStatus();
}

absl::Status RunDirectory::write_named(const File& file) {
  const absl::Status status = write_file_atomically(
      path_ / file.name, file.contents,
      file.is_elsewhere() ? AtomicFile::Link::kFollow : AtomicFile::Link::kReplace);
  if (!file.is_elsewhere()) return status;
  if (status.ok()) went_back_ = false;
  const std::string why(status.message());
  const bool is_news = std::exchange(record_refused_, why) != why;
  if (is_news && events_.on_record) events_.on_record(status);
  return status;
}

/// A line that was written in part is cut off again, which needs no room.
absl::Status RunDirectory::write_lines(std::deque<Item>& items) {
  POSEIDON_RETURN_IF_ERROR(find_again());
  std::string lines;
  std::optional<SnapshotId> reached;
  auto end = items.begin();
  for (; end != items.end() && lines.size() < kMostAtOnce; ++end) {
    const Line* line = std::get_if<Line>(&*end);
    if (line == nullptr) break;
    lines += line->text;
    if (line->reaches) reached = line->reaches;
  }
  const off_t before = ::lseek(metrics_fd_.get(), 0, SEEK_END);
  const absl::Status status = write_fully(metrics_fd_.get(), path_ / kMetricsFile, lines);
  if (!status.ok()) {
    if (before >= 0 && ::ftruncate(metrics_fd_.get(), before) != 0) {
      return absl::DataLossError(
          absl::StrCat(status.message(), "; the incomplete line could not be removed"));
    }
    return status;
  }
  items.erase(items.begin(), end);
  if (reached) events_.on_written(*reached);
  return absl::OkStatus();
}

/// The record of the job is on another disk, and the next process needs it all the more when the
/// run's own disk is full. When the run is over no process continues it: then a failed write there
/// must not delay the last lines here. A record that follows a rollback of the metrics must not be
/// on disk before the rollback: the lines from before would be taken for its own. Of several the
/// newest is written, and no older one after it.
void RunDirectory::write_elsewhere(std::deque<Item>& items, bool is_over) {
  std::set<std::string> newer;  // names
  const auto first_back = std::find_if(items.begin(), items.end(), [](const Item& item) {
    return std::holds_alternative<RollBack>(item);
  });
  const auto limit = is_over ? items.end() : first_back;
  std::vector<bool> done(static_cast<std::size_t>(limit - items.begin()));
  for (std::size_t i = done.size(); i-- > 0;) {
    const File* file = std::get_if<File>(&items[i]);
    if (file == nullptr || !file->is_elsewhere()) continue;
    done[i] = true;
    if (!newer.insert(file->name).second) continue;
    const absl::Status status = write_named(*file);
    done[i] = status.ok() || is_over;
  }
  std::deque<Item> rest;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i >= done.size() || !done[i]) rest.push_back(std::move(items[i]));
  }
  items.swap(rest);
}

/// Lines go to a file that can be found by its name: if it, or its folder, was removed or moved,
/// lines written to it are lost.
absl::Status RunDirectory::find_again() {
  const fs::path metrics = path_ / kMetricsFile;
  struct stat ours {};
  struct stat there {};
  if (::fstat(metrics_fd_.get(), &ours) != 0) return errno_status("look at", metrics);
  if (::lstat(metrics.c_str(), &there) == 0) {
    if (ours.st_dev == there.st_dev && ours.st_ino == there.st_ino) return absl::OkStatus();
  } else if (errno != ENOENT) {
    return errno_status("look at", metrics);
  }
  Descriptor again(::open(metrics.c_str(), kMetricsFlags | O_CREAT, 0644));
  if (!again.is_open()) return errno_status("go on with, as it was removed or moved,", metrics);
  spdlog::error("{} was removed or replaced while the run wrote it; the lines from now on go there",
                metrics.string());
  metrics_fd_ = std::move(again);
  return absl::OkStatus();
}

/// In place, and read from the end on: a month's file is gigabytes long, and little of it goes.
/// Lines of iterations are in order, and no test stands before the iteration that it was made
/// after.
absl::Status RunDirectory::roll_back_now(Iteration iteration) {
  const fs::path metrics = path_ / kMetricsFile;
  const Descriptor file(::open(metrics.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) return errno_status("open", metrics);
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size < 0) return errno_status("look at", metrics);
  std::string text;
  off_t begin = size;
  std::size_t end = 0;  // of what stays of the text
  for (off_t window = kMostAtOnce; end == 0 && begin > 0 && iteration > 0; window *= 2) {
    begin = size - std::min(size, window);
    text.resize(static_cast<std::size_t>(size - begin));
    POSEIDON_RETURN_IF_ERROR(read_exactly_at(file.get(), metrics, static_cast<std::uint64_t>(begin),
                                             reinterpret_cast<std::uint8_t*>(text.data()),
                                             text.size()));
    end = end_of_iterations_before(text, iteration);
  }
  if (end == 0) begin = 0;
  const std::string tests = metrics_before(std::string_view(text).substr(end), iteration);
  const off_t kept = begin + static_cast<off_t>(end);
  // Whoever is killed between the two leaves a line that is torn, which the next process cuts off.
  if (::lseek(file.get(), kept, SEEK_SET) < 0) return errno_status("look at", metrics);
  POSEIDON_RETURN_IF_ERROR(write_fully(file.get(), metrics, tests));
  if (::ftruncate(file.get(), kept + static_cast<off_t>(tests.size())) != 0) {
    return errno_status("take lines back from", metrics);
  }
  if (::fdatasync(file.get()) != 0) return errno_status("write to disk", metrics);
  metrics_fd_ = Descriptor(::open(metrics.c_str(), kMetricsFlags));
  return metrics_fd_.is_open() ? absl::OkStatus() : errno_status("open", metrics);
}

std::optional<MetricsProgress> progress_of_earlier(const fs::path& directory,
                                                   RunDirectory::Begin begin) {
  if (begin == RunDirectory::Begin::kAnew) return std::nullopt;
  std::ifstream in(directory / kMetricsFile, std::ios::binary);
  return read_metrics_progress(in);  // no such file: nothing to report
}

fs::path plain_folder(const fs::path& path) {
  const fs::path plain = path.lexically_normal();
  return plain.has_filename() ? plain : plain.parent_path();
}

bool is_same_folder(const fs::path& one, const fs::path& other) {
  std::error_code ignored;  // one is not there: then it is the text that counts
  return plain_folder(one) == plain_folder(other) || fs::equivalent(one, other, ignored);
}

std::string metrics_before(std::string_view metrics, Iteration iteration) {
  std::string kept;
  while (!metrics.empty()) {
    const std::size_t end = metrics.find('\n');
    if (end == std::string_view::npos) break;
    const std::string_view line = metrics.substr(0, end + 1);
    metrics.remove_prefix(end + 1);
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto it = json.is_object() ? json.find("iteration") : json.end();
    if (it == json.end() || !it->is_number_integer()) continue;
    if (it->get<Iteration>() < iteration) kept += line;
  }
  return kept;
}

absl::StatusOr<std::unique_ptr<ModelFile>> RunDirectory::receive_model(
    std::uint64_t total_bytes) const {
  return ModelFile::open(path_, total_bytes);
}

}  // namespace poseidon
