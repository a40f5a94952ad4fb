// SPDX-License-Identifier: Apache-2.0
// What Open MPI leaves on this host if mpirun is killed: the session directory and the
// shared-memory segments (btl vader), some 12 MB for four ranks. It is written down while the job
// lives, so that a later job of the same name can remove it.
//
// The record is a file `millrace-job.<uid>.<pid of mpirun>.<its start time>` in /dev/shm. On hosts
// without the mpirun process, Open MPI's daemon takes its place. Every rank holds a lock on the
// file for as long as it lives. A job is dead if mpirun is gone and nobody holds the lock. Ranks
// whose mpirun ended while they started have their own record, with an invalid start time. The
// last rank of an orderly end removes the record. A record that stays is a few hundred bytes, and
// the next job of its name removes it.
//
// Only ranks that Open MPI 4's mpirun started have a record. Others have an empty JobRecord, whose
// functions do nothing. A failure here never ends a job: it is logged.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

#include "common/system/file_descriptor.h"

namespace millrace::comm {

// Where a job's files are, as mpirun tells its ranks in the environment.
struct JobFiles {
  std::string name;               // of the group
  std::string session_directory;  // .../ompi.<host>.<uid>/<one of this mpirun>
  std::string segment_directory;
  std::string job_id;  // as in the segments' names: hexadecimal digits
};

class JobRecord {
 public:
  // Call before MPI_Init, because a job can be killed during it.
  static JobRecord of_this_process(const std::string& job_name);
  // `owner`: the process whose end is the job's end if no rank is left. It may be gone already.
  static JobRecord create(const std::string& directory, const JobFiles& files, int owner);

  JobRecord() = default;
  JobRecord(JobRecord&& other) = default;
  JobRecord& operator=(JobRecord&& other) = delete;
  ~JobRecord();

  // Removes what dead jobs of this name and user have left on this host, and returns how many there
  // were. Ranks outlive a killed mpirun by a second, so call it again later.
  int remove_dead_predecessors() const;

 private:
  JobRecord(std::string directory, std::string path, JobFiles files, FileDescriptor lock);
  bool remove_if_dead(const std::string& path, int pid, const std::string& started) const;

  std::string directory_;
  std::string path_;
  JobFiles files_;
  FileDescriptor lock_;
};

}  // namespace millrace::comm
