// Shared ground of the simulated driver: cuda.h, short integer names, logging, the environment's settings
// and the random numbers. Everything else includes this file first.
//
// cuda.h is included with __CUDA_API_VERSION_INTERNAL, which declares the old and the new form of every entry
// point (cuMemAlloc and cuMemAlloc_v2) and leaves out the macros that would rename one to the other. So the
// compiler checks each signature that we export.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#include <cuda.h>

#include "random.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// The version script exports cu* and xsim_*; this keeps them out of -fvisibility=hidden.
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace sim {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

enum class Policy {
    Eager,   // every operation runs as soon as it can, inside the call that queues it
    Min,     // only what the synchronised stream needs runs: shows a consumer that forgot to wait
    Max,     // everything else runs first: shows memory that was given away too early
    Seeded,  // random priorities with random change points: explores the schedules in between
};

bool policy_from_name(const char* name, Policy* policy);  // false: there is none of this name

constexpr int kMaxDevices = 8;

// Read from the environment once, when the driver is first used: see settings.cpp. In front of the colons of the
// comments are the keys of XLOGMEM_SIM.
struct Config {
    Policy policy = Policy::Eager;   // policy, and for the seeded one:
    u64 seed = 0;                    // seed
    int version = 13000;             // version: entry points newer than this do not exist
    int machine = 2;                 // devices: those of the machine
    std::vector<int> visible;        // CUDA_VISIBLE_DEVICES: those of the process, in its order; else all
    int devices = 0;                 // how many these are
    bool races = true;               // races=0: no happens-before checks
    int trace = 0;                   // trace: 1 races and odd calls, 2 executed operations
    bool peers = true;               // peers=0: no device can access another's memory
    bool pageable = false;           // pageable: devices reach all memory of the process; xsim_set_pageable
    bool free_waits = true;          // free_waits=0: cuMemFree does not wait for the device
    bool fills = true;               // xsim_set_fills: new and freed memory is filled with patterns
    bool unknown_kernels = false;    // xsim_launch_unknown: they are launched, and new memory is full of zeros
    bool quiet = false;              // quiet: Python does not announce the simulated driver
    u64 memory = u64(16) << 30;      // memory: bytes of each device
    u64 arena = u64(64) << 30;       // arena: bytes of the address range that all devices share
    std::size_t queue_limit = 1024;  // queue: operations a stream holds before a launch blocks
    double deadlock_seconds = 10;    // deadlock_s: the watchdog's patience
    std::vector<std::string> wrong;  // what cannot be read, a sentence each; the driver then refuses to start

    static Config from_environment();
    void find_devices();  // as a driver does it, when it is initialised
};

// The machine's device `number`, as CUDA_VISIBLE_DEVICES and nvidia-smi name it.
void uuid_of(int number, unsigned char (&bytes)[16]);

// A line on stderr. Never silent about what the simulator cannot do.
void log_line(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace sim
