//! What is kept for a tenant, and what it may use.

use serde::Serialize;
use utoipa::ToSchema;

use crate::volumes::Stored;

/// A directory that outlives sessions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Volume)]
pub(crate) struct VolumeJson {
    name: String,
    /// What it takes where it is kept.
    bytes: u64,
    /// A session will replace it when it ends.
    in_use: bool,
}

/// Volumes, by name.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Volumes)]
pub(crate) struct VolumesJson {
    pub(crate) volumes: Vec<VolumeJson>,
    #[schema(required = true)]
    pub(crate) next: Option<String>,
}

/// A volume that was kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SavedVolume)]
pub(crate) struct SavedJson {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// What an archive came to.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Unpacked)]
pub(crate) struct UnpackedJson {
    pub(crate) path: String,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// What a tenant has now and has used today.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TenantUsage)]
pub(crate) struct UsageJson {
    pub(crate) tenant: String,
    pub(crate) cells: AmountJson,
    pub(crate) memory_bytes: AmountJson,
    pub(crate) disk_bytes: AmountJson,
    pub(crate) cpu_ms_today: AmountJson,
    #[schema(required = true)]
    pub(crate) requests_per_second: Option<u64>,
}

/// Of something that may be bounded. What nobody has set a bound to is not counted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Amount)]
pub(crate) struct AmountJson {
    #[schema(required = true)]
    used: Option<u64>,
    #[schema(required = true)]
    quota: Option<u64>,
}

impl AmountJson {
    pub(crate) fn new(used: u64, quota: Option<u64>) -> AmountJson {
        AmountJson { used: quota.map(|_| used), quota }
    }
}

impl From<Stored> for VolumeJson {
    fn from(Stored { name, bytes, in_use }: Stored) -> VolumeJson {
        VolumeJson { name, bytes, in_use }
    }
}
