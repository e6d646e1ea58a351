//! Carries out the recipe inside the child, one operation after the other.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use casemate_bare::{Moment, io};
use casemate_guest::{Birth, FIRST_ATTACHED, Gate};
use casemate_wire::launch::{MAX_ATTACHED, block_start};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, MoveMountFlags, mount_bind, mount_change, move_mount};
use rustix::process::{getcwd, setsid};

use crate::cgroup::Group;
use crate::recipe::{Capabilities, GUEST_ID, Ids, Mask, Op, SCRATCH};
use crate::{keeper, sys, terminals};

/// What the launcher prepared for one child.
pub(crate) struct Site<'a> {
    pub(crate) scratch: Option<BorrowedFd<'a>>,
    pub(crate) group: &'a Group,
    pub(crate) channel: BorrowedFd<'a>,
    /// What the cell's kernel is made of, unless it is the host's.
    pub(crate) kernel: &'a [OwnedFd],
    /// What the guest has for its first payload.
    pub(crate) attached: &'a [OwnedFd],
    /// Readable once the launcher has done its part; closed without a byte if it could not.
    pub(crate) go: OwnedFd,
    /// Where the outcome goes. The guest's first payload writes the end of it.
    pub(crate) report: OwnedFd,
    /// Where that payload waits.
    pub(crate) release: OwnedFd,
}

/// The first byte of each part of a report.
pub(crate) const TIMINGS: u8 = 0;
pub(crate) const FAILURE: u8 = 1;
/// Whoever started the cell's own kernel has gone. Before that, nobody looks at what is in the cell.
pub(crate) const STARTED: u8 = 2;

/// Builds the cell around the calling process and becomes its guest. Never returns.
pub(crate) fn build(ops: &[Op], mut site: Site<'_>) -> ! {
    let mut timings = vec![TIMINGS];
    let mut last = Moment::now();
    for (index, &op) in ops.iter().enumerate() {
        let performed = match op {
            Op::BecomeGuest => {
                let gate =
                    Gate { held: site.report, words: timings, release: site.release, birth: Birth::Copied };
                casemate_guest::run(Some(gate), site.attached.len())
            }
            // It says all that there is to say before the first payload does.
            Op::BecomeKeeper(sentry) => {
                let started = io::write_all(&site.report, &timings)
                    .and_then(|()| keeper::start(sentry, &site))
                    .and_then(|running| io::write_all(&site.report, &[STARTED]).map(|()| running));
                match started {
                    Ok(running) => keeper::reap_for_ever(running, site),
                    Err(error) => Err(error),
                }
            }
            op => perform(op, &mut site),
        };
        if let Err(error) = performed {
            let mut report = vec![FAILURE, index as u8];
            report.extend(error.to_string().into_bytes());
            let _ = io::write_all(&site.report, &report);
            break;
        }
        let now = Moment::now();
        timings.extend((now.since(last).as_nanos() as u32).to_le_bytes());
        last = now;
    }
    sys::exit_now(1)
}

/// One operation. Any error ends the launch.
fn perform(op: Op, site: &mut Site<'_>) -> io::Result<()> {
    match op {
        Op::EnterCgroups => site.group.enter(),
        Op::AwaitLauncher => {
            sys::unblock_signals()?;
            io::read_byte(&site.go).map(drop)
        }
        Op::TakeIds(Ids::NamespaceRoot) => sys::become_id(GUEST_ID),
        Op::TakeIds(Ids::HostBlock(block)) => sys::become_id(block_start(block)),
        Op::TakeIds(Ids::Mapped | Ids::Unchanged) => Ok(()),
        Op::NewCgroupNamespace => sys::unshare(libc::CLONE_NEWCGROUP),
        Op::PrivateMounts => {
            Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
        }
        Op::AttachScratch => {
            let scratch = site.scratch.ok_or_else(|| io::Error::other("no scratch file system"))?;
            Ok(move_mount(scratch, "", CWD, SCRATCH, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
        }
        Op::BindScratch(dir) => {
            let (from, to) = dir.paths();
            Ok(mount_bind(format!("{SCRATCH}/{from}"), to)?)
        }
        Op::MountProc(procfs) => sys::mount_proc("/proc", procfs, &[]),
        Op::MountGroups => sys::mount_groups(),
        Op::MountState => keeper::mount_state(),
        Op::MountTerminals => terminals::mount(),
        // The cell's own null device, and a directory of the read-only skeleton that is always empty.
        Op::MaskProc(Mask::File(path)) => Ok(mount_bind("/dev/null", format!("/proc/{path}"))?),
        Op::MaskProc(Mask::Directory(path)) => Ok(mount_bind("/run", format!("/proc/{path}"))?),
        Op::CheckWorkingDirectory => match getcwd(Vec::new())?.as_bytes() {
            b"/" => Ok(()),
            other => {
                Err(io::Error::other(format!("working directory is {}", String::from_utf8_lossy(other))))
            }
        },
        Op::NewSession => Ok(setsid().map(drop)?),
        Op::NewKeyring => sys::join_new_keyring(),
        Op::HarmlessRlimits => {
            for resource in [libc::RLIMIT_CORE, libc::RLIMIT_RTPRIO, libc::RLIMIT_NICE] {
                sys::set_rlimit(resource, 0)?;
            }
            sys::set_rlimit(libc::RLIMIT_MSGQUEUE, 0)
        }
        Op::KeepCapabilities(Capabilities::OfGuest) => {
            let set = bits(&[caps::SETUID, caps::SETGID, caps::SETPCAP, caps::KILL]);
            sys::keep_capabilities(set, set)
        }
        Op::KeepCapabilities(Capabilities::OfRunsc) => {
            // Executed by root of the namespace, it has all that is left in the bounding set.
            let set = bits(&caps::OF_RUNSC);
            sys::keep_capabilities(set, set)
        }
        Op::KeepCapabilities(Capabilities::None) => sys::keep_capabilities(0, 0),
        Op::KeepCapabilities(Capabilities::UntilIdsChange) => {
            sys::keep_capabilities(0, bits(&[caps::SETUID, caps::SETGID]))
        }
        Op::KeepCapabilities(Capabilities::NoneToDrop) => sys::clear_ambient_capabilities(),
        Op::DieWithLauncher => sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize).map(drop),
        Op::NoNewPrivileges => sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(drop),
        Op::Filter(program) => sys::install_filter(casemate_filter::program(program)),
        Op::OnlyTheChannel => {
            let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            for fd in 0..3 {
                sys::move_fd(null.as_raw_fd(), fd)?;
            }
            // None is at another's place: the launcher's lock, child events and more were opened before them.
            sys::move_fd(site.channel.as_raw_fd(), 3)?;
            sys::move_fd(site.report.as_raw_fd(), 4)?;
            sys::move_fd(site.release.as_raw_fd(), 5)?;
            // These could be: first out of each other's way.
            let out_of_the_way = FIRST_ATTACHED + MAX_ATTACHED as i32;
            let aside = |fd: &OwnedFd| Ok(rustix::io::fcntl_dupfd_cloexec(fd, out_of_the_way)?);
            let attached = site.attached.iter().map(aside).collect::<io::Result<Vec<_>>>()?;
            let kernel = site.kernel.iter().map(aside).collect::<io::Result<Vec<_>>>()?;
            for (fd, target) in attached.iter().zip(FIRST_ATTACHED..) {
                sys::move_fd(fd.as_raw_fd(), target)?;
            }
            let mut next = FIRST_ATTACHED as usize + attached.len();
            if !kernel.is_empty() {
                sys::close_range(next, keeper::RUNSC as usize - 1)?;
                next = keeper::RUNSC as usize + kernel.len();
            }
            for (fd, target) in kernel.iter().zip(keeper::RUNSC..) {
                sys::move_fd(fd.as_raw_fd(), target)?;
            }
            let (report, release) = sys::close_all_from(next)?;
            // What they stood for is closed already.
            core::mem::forget((null, attached, kernel));
            core::mem::forget(core::mem::replace(&mut site.report, report));
            core::mem::forget(core::mem::replace(&mut site.release, release));
            Ok(())
        }
        // Carried out by the caller.
        Op::BecomeGuest | Op::BecomeKeeper(_) => Ok(()),
    }
}

fn bits(capabilities: &[u32]) -> u64 {
    capabilities.iter().fold(0, |bits, capability| bits | 1 << capability)
}

/// Numbers from `linux/capability.h`, which `libc` does not carry.
mod caps {
    const CHOWN: u32 = 0;
    const DAC_OVERRIDE: u32 = 1;
    const DAC_READ_SEARCH: u32 = 2;
    const FOWNER: u32 = 3;
    const FSETID: u32 = 4;
    pub(super) const KILL: u32 = 5;
    pub(super) const SETGID: u32 = 6;
    pub(super) const SETUID: u32 = 7;
    pub(super) const SETPCAP: u32 = 8;
    const SYS_CHROOT: u32 = 18;
    const SYS_PTRACE: u32 = 19;
    const SYS_ADMIN: u32 = 21;
    /// Without it, root of a namespace cannot be root of another one within.
    const SETFCAP: u32 = 31;
    /// To make namespaces, mount and chroot for the sandbox and its gofer, which then keep fewer still.
    pub(super) const OF_RUNSC: [u32; 13] = [
        CHOWN,
        DAC_OVERRIDE,
        DAC_READ_SEARCH,
        FOWNER,
        FSETID,
        KILL,
        SETGID,
        SETUID,
        SETPCAP,
        SYS_CHROOT,
        SYS_PTRACE,
        SYS_ADMIN,
        SETFCAP,
    ];
}
