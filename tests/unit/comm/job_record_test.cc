// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/job_record.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "tests/support/child_process.h"
#include "tests/support/temp_directory.h"

namespace millrace::comm {
namespace {

namespace fs = std::filesystem;

// The directories of a host, and jobs whose mpirun is a child process of the test.
class JobRecordTest : public ::testing::Test {
 protected:
  struct Job {
    JobFiles files;
    std::unique_ptr<test::ChildProcess> mpirun;
    int pid = 0;
  };

  // Starts a job with its session directory and two segments.
  Job start(const std::string& name, const std::string& job_id) {
    Job job;
    int pipes[2];
    EXPECT_EQ(::pipe(pipes), 0);
    job.mpirun = std::make_unique<test::ChildProcess>([&](const std::string&) {
      const int pid = ::getpid();
      return ::write(pipes[1], &pid, sizeof(pid)) == sizeof(pid) && ::pause() == 0 ? 0 : 1;
    });
    job.mpirun->tell("");
    EXPECT_EQ(::read(pipes[0], &job.pid, sizeof(job.pid)), static_cast<ssize_t>(sizeof(job.pid)));
    ::close(pipes[0]);
    ::close(pipes[1]);
    job.files = {.name = name,
                 .session_directory = host_.file(fmt::format("ompi.here.0/pid.{}", job.pid)),
                 .segment_directory = host_.path(),
                 .job_id = job_id};
    fs::create_directories(job.files.session_directory + "/0/0");
    for (int rank = 0; rank < 2; ++rank) host_.write(segment(job_id, rank), "pages");
    return job;
  }
  JobRecord record_of(const Job& job) {
    return JobRecord::create(host_.path(), job.files, job.pid);
  }
  // Ends mpirun and all ranks as SIGKILL does, without running destructors.
  void kill(Job& job, std::optional<JobRecord>& record) {
    const auto keep = fs::path(record_path(job));
    fs::copy_file(keep, host_.file("kept"));
    record.reset();
    fs::rename(host_.file("kept"), keep);
    ::chmod(keep.c_str(), 0600);
    job.mpirun->kill();
  }
  std::string record_path(const Job& job) const {
    const auto prefix = fmt::format("millrace-job.{}.{}.", ::geteuid(), job.pid);
    for (const auto& entry : fs::directory_iterator(host_.path())) {
      if (entry.path().filename().string().starts_with(prefix)) return entry.path();
    }
    return "";
  }
  static std::string segment(const std::string& job_id, int rank) {
    return fmt::format("vader_segment.here.{}.{}.{}", ::geteuid(), job_id, rank);
  }
  bool has_all(const Job& job) const {
    return fs::exists(job.files.session_directory) &&
           fs::exists(host_.file(segment(job.files.job_id, 0))) &&
           fs::exists(host_.file(segment(job.files.job_id, 1)));
  }
  bool has_none(const Job& job) const {
    return !fs::exists(job.files.session_directory) &&
           !fs::exists(host_.file(segment(job.files.job_id, 0))) &&
           !fs::exists(host_.file(segment(job.files.job_id, 1))) && record_path(job).empty();
  }

  test::TempDirectory host_;
};

TEST_F(JobRecordTest, TheLastRankOfAnOrderlyEndTakesItAway) {
  const auto job = start("a", "64cb0001");
  std::optional<JobRecord> rank0 = record_of(job);
  std::optional<JobRecord> rank1 = record_of(job);
  rank0.reset();
  EXPECT_NE(record_path(job), "");
  rank1.reset();
  EXPECT_EQ(record_path(job), "");
}

TEST_F(JobRecordTest, ADeadPredecessorsFilesAreRemoved) {
  auto dead = start("a", "64cb0001");
  std::optional<JobRecord> record = record_of(dead);
  kill(dead, record);
  const auto next = start("a", "64cc0001");
  EXPECT_EQ(record_of(next).remove_dead_predecessors(), 1);
  EXPECT_TRUE(has_none(dead));
  EXPECT_TRUE(has_all(next));
}

TEST_F(JobRecordTest, AJobOfAnotherNameKeepsItsFiles) {
  auto dead = start("b", "64cb0001");
  std::optional<JobRecord> record = record_of(dead);
  kill(dead, record);
  EXPECT_EQ(record_of(start("a", "64cc0001")).remove_dead_predecessors(), 0);
  EXPECT_TRUE(has_all(dead));
}

TEST_F(JobRecordTest, AJobWhoseMpirunLivesKeepsItsFiles) {
  const auto living = start("a", "64cb0001");
  const auto record = record_of(living);
  EXPECT_EQ(record_of(start("a", "64cc0001")).remove_dead_predecessors(), 0);
  EXPECT_TRUE(has_all(living));
}

TEST_F(JobRecordTest, AJobWithARankThatLivesKeepsItsFilesUntilThatEnds) {
  auto dead = start("a", "64cb0001");
  std::optional<JobRecord> rank = record_of(dead);
  dead.mpirun->kill();
  const auto next = start("a", "64cc0001");
  const auto record = record_of(next);
  EXPECT_EQ(record.remove_dead_predecessors(), 0);
  EXPECT_TRUE(has_all(dead));
  kill(dead, rank);
  EXPECT_EQ(record.remove_dead_predecessors(), 1);
  EXPECT_TRUE(has_none(dead));
}

TEST_F(JobRecordTest, ARankThatMpirunsEndOvertookLeavesNoMoreThanOthers) {
  auto dead = start("a", "64cb0001");
  dead.mpirun->kill();
  std::optional<JobRecord> rank = record_of(dead);
  const auto next = start("a", "64cc0001");
  const auto record = record_of(next);
  EXPECT_EQ(record.remove_dead_predecessors(), 0);
  kill(dead, rank);
  EXPECT_EQ(record.remove_dead_predecessors(), 1);
  EXPECT_TRUE(has_none(dead));
  EXPECT_TRUE(has_all(next));
}

// The process that adopted the orphan stays alive.
TEST_F(JobRecordTest, AnOrphansRecordIsNamedAfterItsMpirun) {
  const auto dead = start("a", "64cb0001");
  dead.mpirun->kill();
  ::setenv("OMPI_MCA_orte_jobfam_session_dir", dead.files.session_directory.c_str(), 1);
  ::setenv("PMIX_NAMESPACE", "1690959873", 1);
  const auto path = fmt::format("/dev/shm/millrace-job.{}.{}.gone", ::geteuid(), dead.pid);
  {
    const auto record = JobRecord::of_this_process("a");
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
  ::unsetenv("PMIX_NAMESPACE");
  ::unsetenv("OMPI_MCA_orte_jobfam_session_dir");
}

// Names of segments come from mpirun's process number, which may occur again in a restarted
// container.
TEST_F(JobRecordTest, SegmentsThatThisJobHasByTheSameNamesStay) {
  auto dead = start("a", "64cb0001");
  std::optional<JobRecord> record = record_of(dead);
  kill(dead, record);
  const auto next = start("a", "64cb0001");
  EXPECT_EQ(record_of(next).remove_dead_predecessors(), 1);
  EXPECT_TRUE(has_all(next));
  EXPECT_FALSE(fs::exists(dead.files.session_directory));
}

TEST_F(JobRecordTest, ARecordThatOthersCouldWriteIsNoReasonToRemoveAnything) {
  auto dead = start("a", "64cb0001");
  std::optional<JobRecord> record = record_of(dead);
  kill(dead, record);
  ASSERT_EQ(::chmod(record_path(dead).c_str(), 0666), 0);
  EXPECT_EQ(record_of(start("a", "64cc0001")).remove_dead_predecessors(), 0);
  EXPECT_TRUE(has_all(dead));
}

TEST_F(JobRecordTest, ADirectoryThatIsNoSessionOfOpenMpiStays) {
  auto dead = start("a", "64cb0001");
  dead.files.session_directory = host_.file("precious/data");
  fs::create_directories(dead.files.session_directory);
  std::optional<JobRecord> record = record_of(dead);
  kill(dead, record);
  EXPECT_EQ(record_of(start("a", "64cc0001")).remove_dead_predecessors(), 1);
  EXPECT_TRUE(fs::exists(dead.files.session_directory));
}

TEST_F(JobRecordTest, ANameWithALineEndMakesNoRecord) {
  const auto job = start("a\nb", "64cb0001");
  const auto record = record_of(job);
  EXPECT_EQ(record_path(job), "");
}

}  // namespace
}  // namespace millrace::comm
