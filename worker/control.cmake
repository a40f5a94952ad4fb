# The group's end of the connection to the coordinator.
mr_library(mr_worker_control SOURCES control_board.cc control_client.cc DEPS mr_protocol mr_common Boost::headers)
