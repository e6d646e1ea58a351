//! The conformance suite: one body per promise, run on every stack. A plan's field that a wall cannot enforce must be refused
//! with a hint, by the same test. Every test has an engine of its own, and ends by insisting that its chain verifies and that
//! nothing of it is left.

mod files;
mod life;
mod limits;
mod program;
mod sessions;
mod streams;
mod terminals;
mod walls;

use std::io::Write;

use casemate_testkit::{CellBuilder, DockerRuntime, Ran, Rig, Stack, Wall, cell, is_root, needs_root};

/// Makes a test of each body for each stack. A body that is not listed is dead code, which the build denies.
macro_rules! on_every_stack {
    ($($chapter:ident: $($test:ident),+;)+) => {
        $($(
            mod $test {
                use casemate_testkit::DockerRuntime;

                #[test]
                fn container() {
                    crate::on("container", crate::$chapter::$test);
                }
                #[test]
                fn process() {
                    crate::on("process", crate::$chapter::$test);
                }
                #[test]
                fn container_wasm() {
                    crate::on("container+wasm", crate::$chapter::$test);
                }
                #[test]
                fn process_wasm() {
                    crate::on("process+wasm", crate::$chapter::$test);
                }
                #[test]
                fn gvisor() {
                    crate::on("gvisor", crate::$chapter::$test);
                }
                #[test]
                fn gvisor_wasm() {
                    crate::on("gvisor+wasm", crate::$chapter::$test);
                }
                #[test]
                fn microvm_container() {
                    crate::on("microvm+container", crate::$chapter::$test);
                }
                #[test]
                fn docker() {
                    crate::on_docker(DockerRuntime::Runc, crate::$chapter::$test);
                }
                #[test]
                fn docker_runsc() {
                    crate::on_docker(DockerRuntime::Runsc, crate::$chapter::$test);
                }
            }
        )+)+
    };
}

on_every_stack! {
    program: arguments_arrive_unchanged, commands_are_looked_up_in_path, a_command_that_cannot_run_is_refused,
        the_environment_is_what_was_given, the_work_directory_is_what_was_asked, every_exit_code_is_reported,
        signals_are_reported, code_runs_in_every_language;
    streams: input_is_empty_unless_provided, input_arrives_whole, input_may_be_left_unread, output_is_exact_to_the_byte,
        each_stream_keeps_its_order, a_slow_receiver_loses_nothing, output_is_cut_at_the_limit, no_output_at_all;
    files: files_go_in_as_they_are, trees_go_in_as_they_are, no_set_id_bit_goes_in, too_much_does_not_go_in,
        files_and_trees_come_out, what_is_missing_is_said, only_files_and_directories_come_out, too_much_does_not_come_out;
    limits: time_runs_out, processor_time_runs_out, processors_are_shared_out, memory_runs_out, disk_runs_out,
        inodes_run_out, processes_run_out, descriptors_run_out, the_stack_runs_out, what_cannot_be_enforced_is_refused,
        unbounded_defaults_are_reported;
    walls: tracing_needs_to_be_asked_for, layers_are_never_traded, grants_that_do_not_exist_are_refused,
        the_host_image_is_the_hosts_programs, a_directory_is_an_image, the_callers_files_stay_as_they_are,
        an_image_with_too_many_names_is_not_run, many_images_stay_apart, the_posture_is_recorded;
    life: a_caller_can_cancel, a_dropped_execution_is_killed_and_recorded, usage_is_plausible, timings_tell_where_time_went,
        receipts_lead_to_records, refusals_are_recorded, executions_share_nothing, no_namespace_is_used_twice;
    sessions: programs_of_a_session_share_its_files_and_nothing_else, every_program_of_a_session_has_a_record_that_points_to_it,
        a_program_that_does_not_start_leaves_the_session_alone, programs_of_a_session_run_side_by_side,
        time_runs_out_for_a_program_and_not_for_its_session, files_of_a_session_can_be_had_at_any_time,
        no_path_leads_out_of_a_sessions_directories, changes_are_told_to_whoever_watches, a_paused_session_stands_still,
        a_session_ends_with_everything_in_it, what_is_done_to_files_of_a_session_is_recorded,
        code_for_an_interpreter_is_recorded;
    terminals: a_program_on_a_terminal_finds_what_it_expects, keys_on_a_terminal_do_what_they_do,
        a_shell_on_a_terminal_has_job_control, a_terminal_can_have_another_size, whoever_is_left_on_a_terminal_is_hung_up_on,
        terminals_of_cells_are_apart, nobody_else_has_terminals;
}

/// What cannot apply to a stack that ends in WASM, and why. There, its body shows that asking for it is refused, or what holds
/// instead.
const NOT_ON_WASM: &[(&str, &str)] = &[
    ("commands_are_looked_up_in_path", "no native program runs there: a command is refused"),
    ("a_command_that_cannot_run_is_refused", "every command is refused"),
    ("the_work_directory_is_what_was_asked", "a working directory is refused; with files it is /work"),
    (
        "signals_are_reported",
        "nobody can send one; a trap is reported as the signal that a native program would have got",
    ),
    ("processes_run_out", "there are no processes: os.fork does not exist"),
    ("tracing_needs_to_be_asked_for", "there is nothing to trace: the need is refused"),
    ("the_host_image_is_the_hosts_programs", "an instance sees no image, not even the host's"),
    ("a_directory_is_an_image", "an image is refused"),
    ("an_image_with_too_many_names_is_not_run", "an image is refused"),
    ("many_images_stay_apart", "an image is refused"),
    (
        "no_namespace_is_used_twice",
        "an instance has no namespaces to look at; the native stacks show that of the worker's cell",
    ),
];

/// For people: a test that passes prints nothing by itself.
#[test]
fn what_cannot_apply_to_wasm_is_listed() {
    let mut out = std::io::stdout().lock();
    writeln!(out, "not applicable on container+wasm, process+wasm and gvisor+wasm:")
        .expect("standard output");
    for (name, why) in NOT_ON_WASM {
        writeln!(out, "  {name}: {why}").expect("standard output");
    }
}

fn is_wasm(stack: &Stack) -> bool {
    stack.contains(Wall::Wasm)
}

/// Whether this is a stack on which the body called `name` cannot apply. The table must say so.
fn is_not_for(stack: &Stack, name: &str) -> bool {
    let listed = NOT_ON_WASM.iter().any(|(listed, _)| *listed == name);
    assert!(listed, "{name} is not in the table of what cannot apply");
    is_wasm(stack)
}

/// Shows that what cannot apply is refused for a reason that names `about`.
async fn refuses(cell: CellBuilder<'_>, about: &str) {
    refused(&cell.run().await, about);
}

/// Runs one body on one stack.
fn on(stack: &str, test: impl AsyncFn(&Rig, &Stack)) {
    let stack: Stack = stack.parse().expect("a stack");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let rig = Rig::open().await;
        match needs_root(&stack) && !is_root() {
            false => test(&rig, &stack).await,
            // The whole stack is refused, whatever was asked of it.
            true => refuses(cell(&rig, &stack), "without root").await,
        }
        rig.close().await;
    });
}

/// Runs one body in containers of the Docker Engine, or shows what a user is told who may not use it.
fn on_docker(kind: DockerRuntime, test: impl AsyncFn(&Rig, &Stack)) {
    let stack = Stack::of(Wall::Docker);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let rig = Rig::with_docker(kind).await;
        match is_root() {
            true => test(&rig, &stack).await,
            false => refuses(cell(&rig, &stack), "Docker Engine").await,
        }
        rig.close().await;
    });
}

/// Fails unless the run was refused for a reason that names `about`, with a hint.
#[track_caller]
fn refused(ran: &Ran, about: &str) {
    match ran.refusal() {
        Some(refusal) => {
            assert!(refusal.reason.contains(about), "{about} is not in {:?}", refusal.reason);
            assert!(!refusal.hint.is_empty(), "no hint for {:?}", refusal.reason);
        }
        None => panic!("{about}: not refused: {}", ran.story()),
    }
}

#[track_caller]
fn succeeded(ran: &Ran) {
    assert_eq!(ran.code(), Some(0), "{}", ran.story());
}
