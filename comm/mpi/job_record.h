// What Open MPI leaves on this host if mpirun is killed, written down while the job lives, so that a
// later job of the same name can remove it: the session directory and the shared-memory segments
// (btl vader), some 12 MB for four ranks.
//
// The record is a file `millrace-job.<uid>.<pid of mpirun>.<its start time>` in /dev/shm; on hosts
// without the mpirun its daemon takes mpirun's place. Every rank holds a lock on it for as long as it
// lives. A job is dead when mpirun is gone and nobody holds the lock. Ranks that mpirun's end overtook
// have a record of their own, with a start time that is none. The last rank of an orderly end takes
// the record away; one that remains is a few hundred bytes, and the next job of its name removes it.
//
// Only ranks that Open MPI 4's mpirun started have one. Others have an empty JobRecord, whose
// functions do nothing. No failure here ends a job: it is logged.
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
  std::string job_id;  // as segments' names have it: hexadecimal digits
};

class JobRecord {
 public:
  // Call before MPI_Init: a job can be killed in it.
  static JobRecord of_this_process(const std::string& job_name);
  // `owner`: the process whose end is the job's, if no rank is left. It may be gone.
  static JobRecord create(const std::string& directory, const JobFiles& files, int owner);

  JobRecord() = default;
  JobRecord(JobRecord&& other) = default;
  JobRecord& operator=(JobRecord&& other) = delete;
  ~JobRecord();

  // Removes what dead jobs of this name, of the same user, have left on this host; how many they
  // were. Ranks outlive a killed mpirun by a second: call it again later.
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
