//! The table's numbers against libc's, for all calls that libc names whatever its flavour.

use std::collections::BTreeMap;

use crate::Program;
use crate::table::{Arch, rows};

macro_rules! numbers {
    ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
}

#[test]
fn the_table_and_libc_have_the_same_numbers() {
    let table: BTreeMap<_, _> = rows(Arch::NATIVE, Program::Guest).map(|(name, nr, _)| (name, nr)).collect();
    let everywhere = numbers! {
        SYS_read SYS_write SYS_close SYS_lseek SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_preadv
        SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_openat SYS_openat2 SYS_close_range SYS_dup SYS_dup3
        SYS_fcntl SYS_flock SYS_pipe2 SYS_ppoll SYS_pselect6 SYS_sendfile SYS_splice SYS_tee SYS_vmsplice
        SYS_copy_file_range SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2
        SYS_signalfd4 SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch SYS_fsync SYS_fdatasync
        SYS_sync SYS_syncfs SYS_readahead SYS_fadvise64 SYS_fallocate SYS_truncate SYS_ftruncate
        SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents SYS_ioctl SYS_fstat
        SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat SYS_faccessat2 SYS_getdents64
        SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdirat SYS_linkat SYS_unlinkat SYS_symlinkat SYS_readlinkat
        SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask SYS_utimensat SYS_getxattr SYS_lgetxattr
        SYS_fgetxattr SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
        SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_renameat2 SYS_mknodat SYS_mmap SYS_mprotect
        SYS_munmap SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_brk SYS_mlock SYS_mlock2 SYS_munlock
        SYS_mlockall SYS_munlockall SYS_remap_file_pages SYS_memfd_create SYS_mseal SYS_pkey_alloc
        SYS_pkey_free SYS_pkey_mprotect SYS_membarrier SYS_clone SYS_clone3 SYS_execve SYS_execveat SYS_exit
        SYS_exit_group SYS_wait4 SYS_waitid SYS_set_tid_address SYS_futex SYS_futex_waitv
        SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_restart_syscall SYS_getpid SYS_getppid
        SYS_gettid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_pidfd_open SYS_pidfd_send_signal
        SYS_process_mrelease SYS_prctl SYS_personality SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigqueueinfo
        SYS_rt_tgsigqueueinfo SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigpending SYS_rt_sigsuspend
        SYS_rt_sigtimedwait SYS_rt_sigreturn SYS_sigaltstack SYS_getuid SYS_geteuid SYS_getgid SYS_getegid
        SYS_getresuid SYS_getresgid SYS_getgroups SYS_setuid SYS_setgid SYS_setreuid SYS_setregid
        SYS_setresuid SYS_setresgid SYS_setgroups SYS_setfsuid SYS_setfsgid SYS_capget SYS_capset
        SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
        SYS_sched_yield SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_sched_getattr
        SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getpriority
        SYS_ioprio_get SYS_getcpu SYS_sched_setaffinity SYS_sched_setparam SYS_sched_setscheduler
        SYS_sched_setattr SYS_prlimit64 SYS_setpriority SYS_ioprio_set SYS_getrusage SYS_gettimeofday
        SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_times SYS_getitimer
        SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
        SYS_timer_delete SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_uname SYS_sysinfo
        SYS_getrandom SYS_socket SYS_socketpair SYS_connect SYS_bind SYS_listen SYS_accept SYS_accept4
        SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_shutdown
        SYS_getsockname SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_shmget SYS_shmat SYS_shmdt
        SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget SYS_msgsnd SYS_msgrcv
        SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify
        SYS_mq_getsetattr SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_process_madvise
        SYS_pidfd_getfd SYS_unshare SYS_setns SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_move_mount
        SYS_open_tree SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr SYS_io_uring_setup
        SYS_io_uring_enter SYS_io_uring_register SYS_memfd_secret SYS_bpf SYS_perf_event_open
        SYS_userfaultfd SYS_keyctl SYS_add_key SYS_request_key SYS_open_by_handle_at SYS_name_to_handle_at
        SYS_fanotify_init SYS_fanotify_mark SYS_lookup_dcookie SYS_init_module SYS_finit_module
        SYS_delete_module SYS_kexec_load SYS_reboot SYS_swapon SYS_swapoff SYS_acct SYS_quotactl
        SYS_quotactl_fd SYS_nfsservctl SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime
        SYS_sethostname SYS_setdomainname SYS_syslog SYS_vhangup
    };
    #[cfg(target_arch = "x86_64")]
    let here = numbers! {
        SYS_open SYS_creat SYS_dup2 SYS_pipe SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd
        SYS_signalfd SYS_inotify_init SYS_sync_file_range SYS_stat SYS_lstat SYS_access SYS_getdents
        SYS_rename SYS_renameat SYS_mkdir SYS_rmdir SYS_link SYS_unlink SYS_symlink SYS_readlink SYS_chmod
        SYS_fchmodat2 SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat SYS_mknod SYS_fork SYS_vfork
        SYS_arch_prctl SYS_getpgrp SYS_pause SYS_getrlimit SYS_setrlimit SYS_time SYS_alarm SYS_modify_ldt
        SYS_kexec_file_load SYS_iopl SYS_ioperm
    };
    #[cfg(not(target_arch = "x86_64"))]
    let here = [];
    for (name, number) in everywhere.into_iter().chain(here) {
        let name = name.trim_start_matches("SYS_");
        assert_eq!(i64::from(table[name]), number, "{name}");
    }
}
