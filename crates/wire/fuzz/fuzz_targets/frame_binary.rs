#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| metaq_wire::fuzzing::frame_binary(bytes));
