# psql ($PSQL): logs in by every method and mode of TLS. Arguments: HOST PORT ROOT_CERT CERT KEY METHODS SOCKETS. A line
# a way: name, tab, ok or the error.
host=$1 port=$2 root=$3 cert=$4 key=$5 methods=$(echo "$6" | tr ',' ' ') sockets=$7

# Name of the way, database, password, what stands behind in the connection string.
try() {
    told=$(PGPASSWORD=$3 "$PSQL" -X -w -At -c 'select 1' \
        "host=$host port=$port user=bench dbname=$2 sslrootcert=$root connect_timeout=10 $4" 2>&1)
    case $? in
        0) [ "$told" = 1 ] && told=ok ;;
        *) told="ERROR $(printf '%s' "$told" | tr '\n' ' ')" ;;
    esac
    printf '%s\t%s\n' "$1" "$told"
}

for mode in disable allow prefer require verify-ca verify-full; do
    try "trust $mode" c_trust wrong "sslmode=$mode"
    for method in $methods; do
        try "$method $mode" "c_$method" bench "sslmode=$mode"
    done
done
for method in $methods; do
    for version in TLSv1.2 TLSv1.3; do
        try "$method $version" "c_$method" bench \
            "sslmode=verify-full ssl_min_protocol_version=$version ssl_max_protocol_version=$version"
    done
    try "$method socket" "c_$method" bench "host=$sockets"
    try "$method wrong" "c_$method" wrong sslmode=require
done
for mode in require verify-ca verify-full; do
    try "cert $mode" c_cert bench "sslmode=$mode sslcert=$cert sslkey=$key"
done
try "cert of nobody refused" c_cert bench sslmode=require
for binding in disable prefer require; do
    try "scram binding $binding" c_scram bench "sslmode=require channel_binding=$binding"
done
try "trust socket" c_trust wrong "host=$sockets"
try "peer socket" c_peer wrong "host=$sockets"
try "peer as another refused" c_others bench "host=$sockets"
try "peer over tcp refused" c_peer bench sslmode=require
