//! Errors, reading and writing.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use core::fmt;

use rustix::fd::AsFd;
use rustix::io::Errno;

use crate::call::call;

pub type Result<T> = core::result::Result<T, Error>;

/// What the kernel said, or why something makes no sense.
#[derive(Debug)]
pub struct Error(Reason);

#[derive(Debug)]
enum Reason {
    Kernel(Errno),
    Words(Cow<'static, str>),
}

impl Error {
    pub fn other(words: impl ToString) -> Error {
        Error(Reason::Words(Cow::Owned(words.to_string())))
    }

    pub fn from_raw_os_error(number: i32) -> Error {
        Error(Reason::Kernel(Errno::from_raw_os_error(number)))
    }

    /// The error of the kernel, if it is one.
    pub fn errno(&self) -> Option<Errno> {
        match self.0 {
            Reason::Kernel(errno) => Some(errno),
            Reason::Words(_) => None,
        }
    }

    pub fn raw_os_error(&self) -> Option<i32> {
        self.errno().map(Errno::raw_os_error)
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error(Reason::Kernel(errno))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Words(words) => f.write_str(words),
            Reason::Kernel(errno) => match words(*errno) {
                Some(words) => write!(f, "{words} (os error {})", errno.raw_os_error()),
                None => write!(f, "os error {}", errno.raw_os_error()),
            },
        }
    }
}

impl core::error::Error for Error {}

/// What to call the errors that a launch or a payload can meet. Others keep their number.
fn words(errno: Errno) -> Option<&'static str> {
    Some(match errno {
        Errno::PERM => "Operation not permitted",
        Errno::NOENT => "No such file or directory",
        Errno::SRCH => "No such process",
        Errno::INTR => "Interrupted system call",
        Errno::IO => "Input/output error",
        Errno::NXIO => "No such device or address",
        Errno::TOOBIG => "Argument list too long",
        Errno::NOEXEC => "Exec format error",
        Errno::BADF => "Bad file descriptor",
        Errno::CHILD => "No child processes",
        Errno::AGAIN => "Resource temporarily unavailable",
        Errno::NOMEM => "Cannot allocate memory",
        Errno::ACCESS => "Permission denied",
        Errno::BUSY => "Device or resource busy",
        Errno::EXIST => "File exists",
        Errno::XDEV => "Invalid cross-device link",
        Errno::NODEV => "No such device",
        Errno::NOTDIR => "Not a directory",
        Errno::ISDIR => "Is a directory",
        Errno::INVAL => "Invalid argument",
        Errno::NFILE => "Too many open files in system",
        Errno::MFILE => "Too many open files",
        Errno::TXTBSY => "Text file busy",
        Errno::FBIG => "File too large",
        Errno::NOSPC => "No space left on device",
        Errno::ROFS => "Read-only file system",
        Errno::MLINK => "Too many links",
        Errno::PIPE => "Broken pipe",
        Errno::NAMETOOLONG => "File name too long",
        Errno::NOSYS => "Function not implemented",
        Errno::NOTEMPTY => "Directory not empty",
        Errno::LOOP => "Too many levels of symbolic links",
        Errno::OVERFLOW => "Value too large for defined data type",
        Errno::USERS => "Too many users",
        Errno::NOTSOCK => "Socket operation on non-socket",
        Errno::OPNOTSUPP => "Operation not supported",
        Errno::CONNRESET => "Connection reset by peer",
        Errno::DQUOT => "Disk quota exceeded",
        Errno::CANCELED => "Operation canceled",
        _ => return None,
    })
}

/// Writes all of it, however often that takes.
pub fn write_all(to: impl AsFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(&to, bytes) {
            Ok(0) => return Err(Error::other("nothing more can be written")),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads one byte; an error at the end.
pub fn read_byte(from: impl AsFd) -> Result<u8> {
    let mut byte = [0];
    loop {
        match rustix::io::read(&from, &mut byte) {
            Ok(0) => return Err(Error::other("the other end is gone")),
            Ok(_) => return Ok(byte[0]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Says something on standard error, if anybody listens.
#[allow(unsafe_code, reason = "standard error is whatever has number 2, if anything does")]
pub fn complain(words: &str) {
    // SAFETY: the kernel reads what is borrowed here.
    let _ = unsafe { call(libc::SYS_write, [2, words.as_ptr() as usize, words.len()]) };
}

/// Bytes that ought to be text.
pub fn text(bytes: alloc::vec::Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_the_standard_library_says() {
        for number in 1..134 {
            let ours = Error::from_raw_os_error(number).to_string();
            match words(Errno::from_raw_os_error(number)) {
                Some(_) => assert_eq!(ours, std::io::Error::from_raw_os_error(number).to_string()),
                None => assert_eq!(ours, std::format!("os error {number}")),
            }
        }
        assert_eq!(Error::other("no reason").to_string(), "no reason");
        assert_eq!(Error::other("no reason").raw_os_error(), None);
    }
}
