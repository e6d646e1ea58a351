//! Everything of the engine that talks to the kernel in ways `std` does not.
#![allow(unsafe_code, reason = "all host-side unsafe code of the engine lives in this module")]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::rand::{GetRandomFlags, getrandom};

/// Puts a program into memory that nobody can write to any more, not even its own process (CVE-2019-5736).
pub(crate) fn sealed_program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut memory = Memory::new(name)?;
    memory.write(bytes)?;
    memory.seal()
}

/// Memory that is filled and then sealed. It may be executed.
pub(crate) struct Memory(File);

impl Memory {
    pub(crate) fn new(name: &str) -> io::Result<Memory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels with vm.memfd_noexec want to be asked; older ones do not know the flag.
        let fd = memfd_create(name, flags | MemfdFlags::EXEC).or_else(|_| memfd_create(name, flags))?;
        Ok(Memory(File::from(fd)))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    pub(crate) fn seal(self) -> io::Result<OwnedFd> {
        let fd = OwnedFd::from(self.0);
        // Nothing maps it yet, so what shuts out writers to come shuts out all of them; `WRITE` would also wait for whoever in the
        // kernel happens to look at one of its pages, and give up (EBUSY) if that takes too long.
        let against_writers = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        fcntl_add_seals(&fd, against_writers | SealFlags::SEAL)?;
        Ok(fd)
    }
}

/// The same file, not to be written to through this descriptor.
pub(crate) fn reopened_for_reading(file: &OwnedFd) -> io::Result<OwnedFd> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map(OwnedFd::from)
}

/// Starts `program` with `control` as its standard input, no environment, and a process group of its own, so that
/// Ctrl-C at a terminal reaches only us. Nothing here needs code between fork and exec, so `std` can spare itself
/// the copy of our address space.
pub(crate) fn spawn(program: &OwnedFd, control: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
    command.arg0("casemate-launcher").env_clear().process_group(0);
    command.stdin(control).stdout(Stdio::null()).spawn()
}

/// Bytes that nobody can guess, from the kernel.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// A pair of sockets that keep the boundaries of packets.
pub(crate) fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Registers a descriptor with the runtime. Who asks for room in a socket is woken whenever its peer reads: ask only
/// when it matters.
pub(crate) fn watch_fd(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays the same open descriptor until it is dropped, and the `AsyncFd` owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
}

/// Sends the beginning of `bytes`, with a descriptor perhaps. Does not wait for room.
pub(crate) fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent?),
        }
    }
}

/// Sends one packet with descriptors. Hundreds fit into the socket; should it be full, its reader is busy for a moment.
pub(crate) fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let a_moment = Timespec { tv_sec: 2, tv_nsec: 0 };
    loop {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(casemate_wire::launch::MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::AGAIN) => {}
            sent => return Ok(sent.map(drop)?),
        }
        if poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::OUT)], Some(&a_moment))? == 0 {
            return Err(Errno::AGAIN.into());
        }
    }
}

/// Takes or releases the lock on byte `at`. The lock belongs to the open file: it goes when the last process that
/// shares it is gone. `false`: somebody else has it.
pub(crate) fn lock_byte(file: &File, at: u16, lock: Lock) -> io::Result<bool> {
    // SAFETY: all-zero is a valid `flock`; the fields that matter are set below.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = match lock {
        Lock::Take => libc::F_WRLCK as libc::c_short,
        Lock::Release => libc::F_UNLCK as libc::c_short,
    };
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = libc::off_t::from(at);
    request.l_len = 1;
    // SAFETY: `request` outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Lock {
    Take,
    Release,
}

/// Memory without a name, that others may be given. Nobody executes it.
pub(crate) fn plain_memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels with vm.memfd_noexec want to be told; older ones do not know the flag.
    let memory =
        memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd_create(name, flags))?;
    rustix::fs::ftruncate(&memory, bytes)?;
    Ok(memory)
}

/// Nobody writes to it any more. Whoever had it mapped may take a moment to be gone.
pub(crate) fn seal(memory: OwnedFd) -> io::Result<OwnedFd> {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    for _ in 0..500 {
        match fcntl_add_seals(&memory, all) {
            Err(Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(10)),
            sealed => return sealed.map(|()| memory).map_err(io::Error::from),
        }
    }
    Err(Errno::BUSY.into())
}

/// How fast the counter of this processor runs, in thousands per second. An emulated processor shows the same one.
#[cfg(target_arch = "x86_64")]
pub(crate) fn tsc_khz() -> u64 {
    // SAFETY: reads a counter that every such processor has.
    let read = || unsafe { core::arch::x86_64::_rdtsc() };
    let (began, from) = (std::time::Instant::now(), read());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (to, took) = (read(), began.elapsed());
    (to.saturating_sub(from) as u128 * 1_000_000 / took.as_nanos().max(1)) as u64
}

/// Elsewhere there is none.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn tsc_khz() -> u64 {
    0
}

/// Receives some bytes, and the descriptors that came with them. No bytes: the other side is gone.
pub(crate) fn receive_some(socket: BorrowedFd<'_>, space: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    const MOST: usize = 4;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(space)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok((received.bytes, descriptors))
}
