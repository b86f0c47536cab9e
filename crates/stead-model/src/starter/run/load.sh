# Sends requests, one after the other, and says how many were answered. Arguments: where to, how many.
inbox=$1 requests=$2 answered=0 number=0
mkfifo answers
exec 3<>answers
while [ "$number" -lt "$requests" ]; do
    number=$((number + 1))
    echo "$PWD/answers $number" >"$inbox"
    read -r answer <&3
    if [ "$answer" = ok ]; then answered=$((answered + 1)); fi
done
echo "$answered of $requests answered"
printf '{"requests": %d, "answered": %d}\n' "$requests" "$answered" >out.json
