// SPDX-License-Identifier: Apache-2.0
// A target with a precompiled header needs a source.
